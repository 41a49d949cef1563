"""A DeepFM in plain Keras with its Adam, on rows of `benchmarks.realdata`; writes answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

FACTORS = 8
RATE = 0.001

Numbers = npt.NDArray[Any]


def build(rows: int, slots: int, dense: int) -> Any:
    """A DeepFM over slots of one table; slots of one field are summed with the others, as values of it."""
    index = keras.Input((slots,), dtype="int32")
    numbers = keras.Input((dense,))
    there = keras.ops.cast(keras.ops.not_equal(index, 0), "float32")[..., None]
    normal = keras.initializers.RandomNormal(stddev=0.01)
    vectors = keras.layers.Embedding(rows, FACTORS, embeddings_initializer=normal)(index) * there
    linear = keras.layers.Embedding(rows, 1, embeddings_initializer="zeros")(index) * there
    total = keras.ops.sum(vectors, axis=1)
    pairs = 0.5 * keras.ops.sum(
        total * total - keras.ops.sum(vectors * vectors, axis=1), axis=1, keepdims=True
    )
    deep = keras.layers.Concatenate()([keras.layers.Flatten()(vectors), numbers])
    for units in (64, 32):
        deep = keras.layers.Dense(units, activation="relu")(deep)
    wide = keras.layers.Dense(1)(numbers) if dense else 0.0
    logit = keras.layers.Dense(1)(deep) + wide + pairs + keras.ops.sum(linear, axis=1)
    model = keras.Model([index, numbers], keras.ops.sigmoid(logit))
    model.compile(keras.optimizers.Adam(RATE), "binary_crossentropy")
    return model


def main() -> None:
    """Predict and learn the first rows batch by batch, pass by pass; answer the others."""
    file, passes, batch = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    data = np.load(file)
    values, codes = np.unique(data["indices"], return_inverse=True)
    # Row 0 of the tables is no value, and stays the lowest.
    indices = (codes.reshape(data["indices"].shape) + (values[0] != 0)).astype(np.int32)
    dense, labels, learnt = data["dense"], data["labels"], int(data["learnt"])
    keras.utils.set_random_seed(0)
    model = build(len(values) + 1, indices.shape[1], dense.shape[1])
    answers = {"progressive": _progressive(model, (indices[:learnt], dense[:learnt], labels[:learnt]), batch)}
    held = [indices[learnt:], dense[learnt:]]
    answers["once"] = model.predict(held, batch_size=4096, verbose=0)[:, 0]
    known = [indices[:learnt], dense[:learnt]]
    model.fit(known, labels[:learnt], batch_size=batch, epochs=passes - 1, verbose=0)
    answers["several"] = model.predict(held, batch_size=4096, verbose=0)[:, 0]
    np.savez(file.with_name("keras.npz"), **answers)
    print(json.dumps({"name": "Keras, DeepFM", "file": "keras.npz"}))


def _progressive(model: Any, rows: tuple[Numbers, Numbers, Numbers], batch: int) -> Numbers:
    predicted = []
    for at in range(0, len(rows[0]), batch):
        indices, dense, labels = (one[at : at + batch] for one in rows)
        predicted.append(model.predict_on_batch([indices, dense])[:, 0])
        model.train_on_batch([indices, dense], labels)
    return np.concatenate(predicted)


if __name__ == "__main__":
    main()
