"""What each kind computes, as functions for kernels: a file a kind, and what several have in common."""
