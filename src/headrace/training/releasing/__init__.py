"""Releasing: publication of a model's weights as versions for serving."""
