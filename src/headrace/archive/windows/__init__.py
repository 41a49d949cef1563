"""Windowed features: counts, sums, means and rates by key over recent rows of a stream."""
