"""Rows of a click stream: their schema, their binary form, and the blocks that models are given."""
