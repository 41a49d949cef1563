"""Several processes that serve on the same ports: workers, and the supervisor process that manages them.

The supervisor (``supervisor``) owns the listening sockets, scans the disk, and merges the workers' reports. A
worker (``worker``) is a complete server that receives its sockets and the wanted state. Decisions are pure
functions: which workers get connections (``connection_shares``), when a worker is restarted or killed
(``restart_rules``), a worker's share of a limit (``budgets``), and how states and metrics are merged
(``state_merge``, ``metrics_merge``). Supervisor and workers exchange messages (``messages``) over a Unix
socket pair per worker (``channel``).
"""
