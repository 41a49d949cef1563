"""The archive's data: settings, keys, records, columns, the catalog of space versions."""
