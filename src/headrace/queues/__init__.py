"""Queues: messages that are delivered at least once; one contract, several engines under it."""
