"""How models predict and explain: weights laid out for candidates that share a context."""
