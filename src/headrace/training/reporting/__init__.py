"""Reporting: what a run says while it learns, in lines, metrics and a plot."""
