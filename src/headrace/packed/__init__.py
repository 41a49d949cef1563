"""Packed texts: where a request's texts lie in its message, instead of a Python object for each."""
