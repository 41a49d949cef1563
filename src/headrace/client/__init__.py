"""Clients: the public one, REST with deadlines, and models over the Open Inference Protocol."""
