"""Images to vectors: where they come from, how they are decoded and prepared, the encoder."""
