"""Several processes that serve on the same ports: workers, and the supervisor process that keeps them.

The supervisor (``pool``) owns the listening sockets, looks at the disk, and puts together what the workers
tell; a worker (``worker``) is a whole server that is handed its sockets and what is wanted. What is decided
is pure: which worker gets a connection (``steering``), when one is started again or ended (``plan``), what is
a worker's part of a limit (``budgets``), how states and metrics are put together (``merging``,
``totals``). They talk in messages (``messages``) over a pair of Unix sockets each (``channel``).
"""
