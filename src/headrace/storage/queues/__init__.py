"""Queues: messages delivered at least once. One contract with several engines."""
