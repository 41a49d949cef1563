"""scikit-learn's logistic regression and LightGBM's trees on rows of `benchmarks.realdata`."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import lightgbm
import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.linear_model import LogisticRegression

Numbers = npt.NDArray[np.generic]


def one_hot(indices: Numbers) -> sparse.csr_matrix:
    """A column for each value that is there; row 0 of the tables is no value."""
    values, codes = np.unique(indices, return_inverse=True)
    rows = np.repeat(np.arange(len(indices)), indices.shape[1])
    there = indices.reshape(-1) != 0
    shape = (len(indices), len(values))
    return sparse.csr_matrix((there.astype(np.float32), (rows, codes.reshape(-1))), shape=shape)


def columns(indices: Numbers, fields: Numbers, dense: Numbers) -> tuple[Numbers, list[int]]:
    """Numbered values of fields with one value, which are categories, then a column for each other value."""
    single, several = [], []
    for first, end in pairwise(fields):
        (single if end - first == 1 else several).append(indices[:, first:end])
    coded = [np.unique(one, return_inverse=True)[1].reshape(len(one), 1) for one in single]
    flags = [one_hot(one).toarray() for one in several]
    return np.hstack([*coded, *flags, dense]).astype(np.float64), list(range(len(coded)))


def main() -> None:
    """Learn from the first rows, answer the others."""
    file = Path(sys.argv[1])
    data = np.load(file)
    indices, dense, labels, learnt = data["indices"], data["dense"], data["labels"], int(data["learnt"])
    wide = sparse.hstack([one_hot(indices), sparse.csr_matrix(dense)]).tocsr()
    linear = LogisticRegression(max_iter=1000).fit(wide[:learnt], labels[:learnt])
    _tell(file, "scikit-learn, logistic regression", linear.predict_proba(wide[learnt:])[:, 1])
    table, categories = columns(indices, data["fields"], dense)
    watched = learnt * 9 // 10
    rows = lightgbm.Dataset(table[:watched], labels[:watched], categorical_feature=categories)
    others = lightgbm.Dataset(table[watched:learnt], labels[watched:learnt], reference=rows)
    settings = {"objective": "binary", "verbose": -1, "learning_rate": 0.05, "num_threads": 2, "seed": 0}
    stop = lightgbm.early_stopping(50, verbose=False)
    trees = lightgbm.train(settings, rows, 1000, valid_sets=[others], callbacks=[stop])
    _tell(file, "LightGBM", trees.predict(table[learnt:]))


def _tell(file: Path, name: str, answers: Numbers) -> None:
    kept = file.with_name(f"{name.partition(',')[0]}.npz")
    np.savez(kept, several=answers)
    print(json.dumps({"name": name, "file": kept.name}))


if __name__ == "__main__":
    main()
