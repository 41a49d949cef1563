"""Click models as compiled kernels, for training and for serving."""
