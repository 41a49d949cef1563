"""A DeepFM's losses over fifty batches beside Keras's, from the same weights with the same optimizer."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from headrace.base.tensors import Array
from headrace.ctr.click_model import Weights
from headrace.ctr.learning.batched import BatchedModel
from headrace.ctr.model_settings import ModelSettings, Optimizer
from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema

tensorflow = pytest.importorskip("tensorflow", reason="the extra tensorflow is not installed")

FIELDS, DENSE, BUCKETS, BATCH, BATCHES = 5, 3, 60, 256, 50
FEATURES = Features.of(
    Schema(
        fields=(
            Field(name="click", role="label"),
            *(Field(name=f"c{number}", role="categorical", buckets=BUCKETS) for number in range(FIELDS)),
            *(Field(name=f"d{number}", role="dense") for number in range(DENSE)),
        )
    )
)
ADAM = Optimizer(kind="adam", learning_rate=0.01)
SETTINGS = ModelSettings(
    kind="deepfm",
    factors=4,
    hidden=(16, 8),
    linear=ADAM,
    embeddings=ADAM,
    network=ADAM,
    initial_scale=0.1,
)


def blocks() -> list[Block]:
    """Batches of rows whose labels depend on two of their values."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(BATCHES):
        values = random.integers(0, BUCKETS, (BATCH, FIELDS))
        dense = random.normal(size=(BATCH, DENSE)).astype(np.float32)
        clicked = (values[:, 0] + values[:, 1]) % 3 == 0
        labels = (random.random(BATCH) < np.where(clicked, 0.8, 0.2)).astype(np.float32)
        made.append(Block((FEATURES.table_starts + values).astype(np.uint32), dense, labels))
    return made


def keras_variables(weights: Weights) -> dict[str, object]:
    """A variable for every array, with its values."""
    arrays = {name: table.values for name, table in weights.tables.items()} | dict(weights.dense)
    return {name: tensorflow.Variable(array) for name, array in arrays.items()}


def keras_loss(own: dict[str, object], block: Block) -> object:
    """The mean logloss, written as TensorFlow's users would."""
    rows = block.indices.astype(np.int64)
    embedded = tensorflow.gather(own["embeddings"], rows)
    logits = own["bias"] + tensorflow.linalg.matvec(block.dense, own["dense"])
    logits += tensorflow.reduce_sum(tensorflow.gather(own["linear"], rows), axis=(1, 2))
    squares = tensorflow.square(tensorflow.reduce_sum(embedded, 1)) - tensorflow.reduce_sum(embedded**2, 1)
    logits += 0.5 * tensorflow.reduce_sum(squares, 1)
    values = tensorflow.concat([tensorflow.reshape(embedded, (len(block), -1)), block.dense], 1)
    for layer in range(len(SETTINGS.hidden) + 1):
        values = values @ own[f"layer{layer}.weights"] + own[f"layer{layer}.bias"]
        values = tensorflow.nn.relu(values) if layer < len(SETTINGS.hidden) else values
    losses = tensorflow.nn.sigmoid_cross_entropy_with_logits(block.labels, logits + values[:, 0])
    return tensorflow.reduce_mean(losses)


def logloss(probabilities: Array, labels: Array) -> float:
    """The mean logloss."""
    return float(-np.log(np.where(labels > 0, probabilities, 1 - probabilities)).mean())


@pytest.mark.rest
def test_losses_are_those_of_keras() -> None:
    model = BatchedModel(SETTINGS, FEATURES)
    own = keras_variables(model.strip())
    optimizer = tensorflow.keras.optimizers.Adam(0.01, epsilon=ADAM.epsilon)
    optimizer.build(list(own.values()))
    ours, theirs = [], []
    for block in blocks():
        ours.append(logloss(model.learn(block), block.labels))
        theirs.append(float(keras_loss(own, block)))
        if len(theirs) == 1:  # the bias begins with the first batch's log-odds
            clicks = block.labels.sum() + 1
            own["bias"].assign([math.log(clicks / (BATCH + 2 - clicks))])
        with tensorflow.GradientTape() as tape:
            loss = keras_loss(own, block)
        gradients = [
            tensorflow.convert_to_tensor(one) for one in tape.gradient(loss, list(own.values()))
        ]  # dense ones, so that every row's moments move
        optimizer.apply_gradients(zip(gradients, own.values(), strict=True))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert ours[-1] < ours[0] - 0.02


def test_gradients_are_those_of_the_tape() -> None:
    step = Optimizer(kind="sgd", learning_rate=1.0)
    settings = msgspec.structs.replace(SETTINGS, linear=step, embeddings=step, network=step)
    model, (first, block, *_) = BatchedModel(settings, FEATURES), blocks()
    model.learn(first)
    before = model.strip()
    own = keras_variables(before)
    model.learn(block)
    after = model.strip()
    with tensorflow.GradientTape() as tape:
        loss = keras_loss(own, block)
    for name, gradient in zip(own, tape.gradient(loss, list(own.values())), strict=True):
        pair = [one.tables[name].values if name in one.tables else one.dense[name] for one in (before, after)]
        expected = tensorflow.convert_to_tensor(gradient).numpy()
        np.testing.assert_allclose(pair[0] - pair[1], expected, atol=math.ldexp(1, -19), err_msg=name)
