"""Versions on disk: their names, manifests and pins, how one appears, and which go."""
