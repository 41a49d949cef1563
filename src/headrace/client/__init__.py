"""Clients of other servers: REST with deadlines, and models over the Open Inference Protocol."""
