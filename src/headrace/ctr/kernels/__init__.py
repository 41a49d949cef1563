"""Building blocks of kernels: vectors, compilation options, matrix products."""
