"""Fuzzing: bytes that nobody has thought of, for all that reads bytes from outside. `make fuzz` runs it."""
