"""The verbs of ``headrace archive``, one module each."""
