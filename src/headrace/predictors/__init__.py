"""Predictors that stand around others: what answers in a model's place, or beside it."""
