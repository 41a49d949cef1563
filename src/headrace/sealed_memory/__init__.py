"""Immutable in-memory copies of files, made once for all processes that share a keeper."""
