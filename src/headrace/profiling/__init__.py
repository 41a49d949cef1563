"""Profiles of a model's time by operation, as a table and as a trace."""
