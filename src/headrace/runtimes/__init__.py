"""From a version directory to a Servable: one file a runtime; ``registry`` finds the right one."""
