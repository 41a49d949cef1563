"""The archive: vectors that were computed once, looked up by key, filled behind a queue."""
