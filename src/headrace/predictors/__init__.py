"""Predictors that wrap others: caches, and defaults that answer in a model's place."""
