"""Loading and unloading of model versions: sources, policies, the manager, handles."""
