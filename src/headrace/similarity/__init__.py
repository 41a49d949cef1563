"""Similarity of the vectors of a space: nearest neighbours, near-duplicates, and layouts for plots.

All functions work on arrays: they take rows of vectors as stored and return row numbers, independent of any
store. Callers need three modules, ``neighbours``, ``duplicates`` and ``layout``; ``headrace.cli.archive``
draws the results.
"""
