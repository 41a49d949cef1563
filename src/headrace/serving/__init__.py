"""Models in service: the engine, loaded versions, and their loader."""
