"""What kernels are made with: intrinsics, memory, options of compilation, matrix products."""
