"""Lookups and writes: the Archive, the readers of its spaces, the cache, and the queue of missing keys."""
