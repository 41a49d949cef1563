"""Versions in processes of their own, so that a crash, leak or hang of one does not affect the server."""
