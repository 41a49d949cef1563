"""Scoring: how good predictions were, in windows, in slices and over all rows."""
