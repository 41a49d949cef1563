"""What each kind computes, as functions for kernels: the forward passes, and what they read."""
