"""Vectors by a model that is served: by this process, or by a remote server."""
