"""Metrics for Prometheus: their names and values, and the formats in which they are read."""
