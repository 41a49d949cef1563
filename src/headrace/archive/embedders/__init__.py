"""Embedders, which make vectors of contents."""
