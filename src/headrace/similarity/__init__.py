"""Similarity of the vectors of a space: nearest neighbours, near-duplicates, and layouts for plots.

All functions work on arrays, independent of any store. ``stored_rows`` wraps vectors as they are stored;
``neighbours``, ``duplicates`` and ``layout`` compute from them, and name vectors by their row numbers.
``headrace.cli.archive`` draws the results.
"""
