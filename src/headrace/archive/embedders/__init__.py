"""Embedders: vectors of texts, of images, and of the inputs of served models."""
