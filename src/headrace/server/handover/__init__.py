"""Hand the ports of a running server over to a new one on the same machine without losing a request.

The running server listens on a Unix socket at a path (``giving``). A server that starts with the same path
receives its listening sockets (``taking``) and loads. It accepts connections once everything that is ready in
the running server is ready in it (``readiness``, which is pure). The two exchange messages of a versioned
protocol (``messages``) over the Unix socket (``conversation``).
"""
