"""Inputs of a model that come from the archive, in serving and in training."""
