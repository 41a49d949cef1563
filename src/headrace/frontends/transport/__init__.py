"""Transports: the ASGI application, and the servers that run it."""
