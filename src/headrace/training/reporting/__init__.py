"""Reporting: the output of a run while it learns, as lines, metrics and a plot."""
