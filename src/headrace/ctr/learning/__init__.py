"""How models learn: online and in batches, their optimizers, the state that they keep."""
