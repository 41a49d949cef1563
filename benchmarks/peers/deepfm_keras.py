"""DeepFM in Keras: `python deepfm_keras.py ROWS.npz dense|lazy`.

Dense is how its users would write it; lazy takes headrace's Adam for it, and reads rows in place of tables.
"""

from __future__ import annotations

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from headrace.training.keras.lazy_adam import LazyAdam

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class Rows(keras.layers.Embedding):
    """An embedding that reads rows, as `headrace.training.keras.Embedded` does."""

    def call(self, indices: tf.Tensor) -> tf.Tensor:
        """The rows of a batch; called by Keras."""
        return self._embeddings.value.sparse_read(indices)


def deepfm(rows: int, fields: int, dense_width: int, embedding: type[keras.layers.Embedding]) -> keras.Model:
    """16 factors, layers of 256, 128 and 64; logits."""
    indices = keras.Input((fields,), dtype="int32")
    dense = keras.Input((dense_width,))
    small = keras.initializers.RandomNormal(stddev=0.01)
    embedded = embedding(rows, 16, embeddings_initializer=small)(indices)
    linear = embedding(rows, 1, embeddings_initializer="zeros")(indices)
    sums, squares = keras.ops.sum(embedded, 1), keras.ops.sum(keras.ops.square(embedded), 1)
    pairs = 0.5 * keras.ops.sum(keras.ops.square(sums) - squares, 1, keepdims=True)
    values = keras.layers.Concatenate()([keras.layers.Flatten()(embedded), dense])
    for units in (256, 128, 64):
        values = keras.layers.Dense(units, activation="relu")(values)
    parts = [keras.layers.Dense(1)(values), keras.layers.Dense(1)(dense), keras.ops.sum(linear, 1), pairs]
    return keras.Model([indices, dense], keras.layers.Add()(parts))


def main(file: str, kind: str) -> None:
    """Learn all rows in batches, and print the CPU time of each batch and the logloss."""
    keras.utils.set_random_seed(0)
    rows = np.load(file)
    batch, indices, dense = int(rows["batch"]), rows["indices"].astype(np.int32), rows["dense"]
    labels = rows["labels"][:, None]
    lazy = kind == "lazy"
    embedding = Rows if lazy else keras.layers.Embedding
    model = deepfm(int(rows["table_rows"]), indices.shape[1], dense.shape[1], embedding)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile((LazyAdam if lazy else keras.optimizers.Adam)(0.001), loss)
    losses, seconds = [], []
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        model.reset_metrics()
        began = time.process_time()
        losses.append(float(model.train_on_batch([indices[part], dense[part]], labels[part])))
        seconds.append(time.process_time() - began)
    print(json.dumps({"seconds": seconds, "losses": losses}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
