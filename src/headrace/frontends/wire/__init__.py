"""Decode, count and write the bytes of every protocol, independently of their meaning."""
