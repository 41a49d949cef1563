"""Data that tree ensembles are fitted on: pictures of digits, and a data frame as people have it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from headrace.base.tensors import Array, Tensors

DIGITS = load_digits()
COUNTRIES, PLANS = ("de", "fr", "pl"), (30, 7, 90)


def digits(rows: int) -> Tensors:
    """Pictures of 64 pixels."""
    return {"features": DIGITS.data[:rows].copy()}


def frame(rows: int) -> pd.DataFrame:
    """Numbers, missing ones among them, categories that are texts, and categories that are numbers."""
    random = np.random.default_rng(0)
    age = random.normal(40, 10, rows)
    age[::7] = np.nan
    countries = random.integers(len(COUNTRIES), size=rows)
    plans = random.integers(len(PLANS), size=rows)
    return pd.DataFrame(
        {
            "age": age,
            "country": pd.Categorical.from_codes(countries, COUNTRIES),
            "plan": pd.Categorical.from_codes(plans, PLANS),
            "visits": random.integers(100, size=rows),
        }
    )


def targets(rows: int) -> Array:
    """Numbers about 0 that depend on every column of ``frame``."""
    data = frame(rows)
    of_country = data.country.cat.codes.to_numpy() - 1.0
    of_plan = (data.plan.cat.codes.to_numpy() == 2) * 2.0
    return of_country + of_plan + data.visits.to_numpy() / 50 - 2 + data.age.fillna(20).to_numpy() / 40


def frame_inputs(rows: int) -> Tensors:
    """The first rows of ``frame`` as inputs."""
    return inputs_of(frame(300)[:rows])


def inputs_of(data: pd.DataFrame) -> Tensors:
    """A data frame's columns as a request has them: texts as bytes, numbers as FP64, missing ones as NaN."""
    inputs = {}
    for name, column in data.items():
        texts = column.dtype == "category" and isinstance(column.cat.categories[0], str)
        values = ["" if pd.isna(one) else one for one in column] if texts else column
        inputs[str(name)] = (
            np.array([one.encode() for one in values], object) if texts else column.to_numpy(np.float64)
        )
    return inputs
