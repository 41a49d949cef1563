"""Building blocks of kernels: vectors and matrix products."""
