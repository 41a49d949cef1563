"""Vectors from a served model, in this process or on a remote server."""
