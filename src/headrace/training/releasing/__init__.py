"""Releasing: what a model has learnt becomes a version that is served."""
