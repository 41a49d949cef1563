"""Merge concurrent requests into calls of a Servable."""
