"""How good answers are, from the answers alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


def auc(truth: Numbers, answers: Numbers) -> float:
    """Give the chance that something liked was answered higher than something not liked; ties count half."""
    _, places, counts = np.unique(answers, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    liked = truth.sum()
    return float((ranks[truth == 1.0].sum() - liked * (liked + 1) / 2) / (liked * (len(truth) - liked)))


def logloss(truth: Numbers, answers: Numbers) -> float:
    """Give the mean surprise at the truth, in nats."""
    sure = np.clip(answers, 1e-7, 1 - 1e-7)
    return float(-np.mean(truth * np.log(sure) + (1 - truth) * np.log(1 - sure)))


def percentile(values: npt.ArrayLike, percent: float) -> float:
    """Give the value that this share does not exceed."""
    return float(np.percentile(np.asarray(values, np.float64), percent, method="higher"))
