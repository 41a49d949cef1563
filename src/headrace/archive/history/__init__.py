"""Replaced values, kept so that models are trained with the values that were served."""
