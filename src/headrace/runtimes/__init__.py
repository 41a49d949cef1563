"""Load a version directory as a Servable: one module per runtime; ``registry`` selects the right one."""
