"""The archive: vectors that were computed once, looked up by key; missing ones are filled through a queue."""
