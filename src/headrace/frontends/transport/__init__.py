"""Where bytes come from and go to: ASGI, and the servers under it."""
