"""A server as a process: its assembly, its signals, its handover to a successor, and its service manager."""
