"""Merging concurrent requests into calls of a Servable."""
