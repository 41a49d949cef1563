"""Learns from a stream, continuously: scored on what was predicted, checkpointed, published in versions."""
