"""Images as a model's input: decoding, resizing, and conversion to numbers."""
