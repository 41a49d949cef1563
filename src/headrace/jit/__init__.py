"""Compiled code: the kernel cache, arguments laid out once, and reads of Python objects and raw memory."""
