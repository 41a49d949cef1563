"""The command ``headrace``."""
