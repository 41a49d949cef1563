"""Searching: many configurations learn from one pass over a stream, and the best is reported."""
