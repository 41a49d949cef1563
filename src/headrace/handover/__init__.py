"""One server takes the ports of another one over, on the same machine, and no request is lost.

The running server waits at a path (``giving``). One that starts with the same path takes the listening
sockets (``taking``), loads, and takes connections when all is ready there that is ready in the other
(``readiness``, which is pure). They talk in messages with a version of their own (``messages``), over a Unix
socket (``conversation``).
"""
