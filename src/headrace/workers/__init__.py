"""Several processes that serve on the same ports: workers, and the supervisor process that manages them.

The supervisor (``supervisor``) owns the listening sockets, scans the disk, and merges the workers' reports. A
worker (``worker``) is a complete server that receives its sockets and the wanted state. Decisions are pure
functions: when a worker is restarted or killed (``restart_rules``), a worker's share of limits and of new
connections (``worker_shares``), and how states and metrics are merged (``state_merge``, ``metrics``).
Supervisor and workers exchange messages over a Unix socket pair per worker (``messages``).
"""
