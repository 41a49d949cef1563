"""Outgoing connections: the URLs and addresses allowed, and one deadline for all data of a connection."""
