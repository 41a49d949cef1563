"""The lowest layer, for every room: errors, tensors, files, clocks, processors, memory, the terminal."""
