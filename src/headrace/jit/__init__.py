"""Compiled code: the kernel cache, packed arguments, and access to Python objects and raw memory."""
