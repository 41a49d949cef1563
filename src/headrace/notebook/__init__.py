"""``headrace.serve(model)``: serve an object of this process, from a notebook or a script."""
