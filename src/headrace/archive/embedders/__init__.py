"""Embedders: what makes vectors of contents."""
