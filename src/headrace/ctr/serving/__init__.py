"""Predictions and explanations, with weights laid out for candidates that share a context."""
