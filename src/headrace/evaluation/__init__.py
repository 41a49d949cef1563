"""Scoring: metrics of predictions in windows, in slices and over all rows."""
