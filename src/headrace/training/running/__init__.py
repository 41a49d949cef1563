"""Running: the loop over the stream, its learner, its schedule, checkpoints and resumption."""
