"""The verbs of ``headrace archive``, a module each."""
