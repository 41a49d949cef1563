"""The computation of each kind, as parts of kernels: factorization machines, densities, and shared parts."""
