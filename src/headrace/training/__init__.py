"""Continuous training from a stream, with progressive validation, checkpoints and published versions."""
