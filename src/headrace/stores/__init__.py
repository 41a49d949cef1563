"""Stores: values by key, in partitions; one contract, several engines under it."""
