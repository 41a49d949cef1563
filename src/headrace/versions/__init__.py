"""Versions on disk: layout, manifests, control records, publishing and deletion."""
