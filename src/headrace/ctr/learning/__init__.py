"""Learning of models, online and in batches: optimizers and their state."""
