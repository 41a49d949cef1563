"""Windowed features: counts, sums, means and rates by key over the past minutes or hours, of a stream."""
