"""From a version directory to a Servable: one file a runtime."""
