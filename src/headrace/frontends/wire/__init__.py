"""Bytes on the wire, for every protocol: decoded, counted and written here, whatever they mean to whom."""
