"""The computation of each kind, as parts of kernels: one file per kind, and shared parts."""
