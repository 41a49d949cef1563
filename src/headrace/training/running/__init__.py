"""Running: the loop over the stream, the learner in it, when something is due, checkpoints and going on."""
