"""Packed texts: the positions of a request's texts in its message, instead of a Python object for each."""
