"""Building blocks of kernels: intrinsics, memory, compilation options, matrix products."""
