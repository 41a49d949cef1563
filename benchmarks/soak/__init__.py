"""A soak: real servers under mixed load and faults, every answer checked, every request accounted for."""
