"""The mathematics of click models: compiled kernels that training and serving share."""
