"""The mathematics of click models, as compiled kernels, for training and for serving."""
