"""Vectors of images: fetching, decoding, preparation, and the encoder."""
