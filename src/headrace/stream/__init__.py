"""Rows of a click stream: their schema, their binary form, and the Blocks that models receive."""
