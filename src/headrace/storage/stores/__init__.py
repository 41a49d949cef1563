"""Stores: values by key, in partitions. One contract with several engines."""
