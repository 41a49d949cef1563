"""Keras models on the stream's fields: what they are given, learning, going on, and what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import ConfigError, FailedPrecondition, ModelError
from headrace.runtimes.registry import RuntimeOptions, load
from headrace.stream.block import Block, Features
from headrace.stream.schema import Field, Schema
from headrace.training.keras import Embedded, inputs_of
from headrace.training.keras.model import KerasModel, keras, load_build
from headrace.training.releasing.publishing import Publisher, Training
from headrace.training.run_session import build_keras_model
from headrace.versions.layout import CONTROL_LOCK

SCHEMA = Schema(
    fields=(
        Field(name="label", role="label"),
        Field(name="site", role="categorical", buckets=1000),
        Field(name="words", role="categorical", buckets=50, values=3),
        Field(name="age", role="dense"),
        Field(name="image", role="vector", size=4),
    )
)
FEATURES = Features.of(SCHEMA)


def network(schema: Schema, dropout: float = 0.0) -> Any:
    inputs = inputs_of(schema)
    parts = [Embedded(schema.by_name[name], 8)(inputs[name]) for name in ("site", "words")]
    layer = keras.layers.Concatenate()([*parts, inputs["age"], inputs["image"]])
    layer = keras.layers.Dense(16, activation="relu")(layer)
    if dropout:
        layer = keras.layers.Dropout(dropout)(layer)
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(layer))


def block(seed: int, rows: int = 256) -> Block:
    random = np.random.default_rng(seed)
    site = 1 + random.integers(0, 1000, (rows, 1))
    words = 1001 + random.integers(0, 50, (rows, 3))
    words[random.random((rows, 3)) < 0.4] = 0
    labels = (site[:, 0] % 2 == 1).astype(np.float32)
    dense = random.normal(size=(rows, 5)).astype(np.float32)
    return Block(np.concatenate([site, words], 1).astype(np.uint32), dense, labels)


def test_the_model_is_given_each_fields_rows_and_numbers_under_its_name() -> None:
    rows = Block(
        np.array([[1, 1001, 0, 1050], [1000, 0, 0, 0]], np.uint32),
        np.arange(10, dtype=np.float32).reshape(2, 5),
        np.zeros(2, np.float32),
    )
    given = KerasModel(network, FEATURES).inputs(rows)
    assert given["site"].tolist() == [0, 999]
    assert given["words"].tolist() == [[0, -1, 49], [-1, -1, -1]]
    names = [field.name for field in FEATURES.numeric]
    widths = {name: given[name].shape for name in names}
    assert widths == {"age": (2, 1), "image": (2, 4)}
    np.testing.assert_array_equal(np.concatenate([given[name] for name in names], 1), rows.dense)


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_values_are_pooled_and_no_value_contributes_nothing(pooling: Any) -> None:
    layer = Embedded(Field(name="words", role="categorical", buckets=5, values=3, pooling=pooling), 2)
    numbers = np.array([[0, 3, -1], [-1, -1, -1]])
    answer = layer(numbers).numpy()
    table = layer.weights[0].numpy()
    expected = table[0] + table[3]
    np.testing.assert_allclose(answer[0], expected / 2 if pooling == "mean" else expected, rtol=1e-6)
    assert answer[1].tolist() == [0, 0]


def test_it_predicts_before_it_learns_and_learns() -> None:
    model = KerasModel(network, FEATURES)
    first = model.predict(block(0))
    assert first.dtype == np.float32
    np.testing.assert_array_equal(model.learn(block(0)), first)
    for step in range(400):
        rows = block(step)
        predicted = model.learn(rows)
    assert ((predicted > 0.5) == (rows.labels > 0.5)).mean() > 0.9


def test_predictions_are_those_of_inference_where_learning_differs_from_it() -> None:
    model = KerasModel(lambda schema: network(schema, dropout=0.5), FEATURES)
    expected = model.predict(block(0))
    np.testing.assert_allclose(model.learn(block(0)), expected, rtol=1e-6)


class Scattered(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
    """Hands ``training`` on to its inner layer, as Keras does for it, without taking it."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, inputs: Any) -> Any:
        return self.dropout(inputs)


class Turned(keras.Model):  # type: ignore[misc]  # as above
    """Is another model in training, with layers that are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, activation="sigmoid")

    def call(self, inputs: Any, training: bool = False) -> Any:
        answer = self.dense(inputs["image"])
        return 1 - answer if training else answer


def with_a_layer_of_its_own(schema: Schema) -> Any:
    inputs = inputs_of(schema)
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(Scattered()(inputs["image"])))


@pytest.mark.parametrize("build", [with_a_layer_of_its_own, lambda _: Turned()])
def test_predictions_are_those_of_inference_where_custom_code_learns_otherwise(build: Any) -> None:
    model = KerasModel(build, FEATURES)
    expected = model.predict(block(0))
    np.testing.assert_allclose(model.learn(block(0)), expected, rtol=1e-6)


def test_a_model_that_learns_as_it_predicts_is_called_once() -> None:
    def nested(schema: Schema) -> Any:
        inputs = inputs_of(schema)
        inner = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1, activation="sigmoid")])
        return keras.Model(inputs, inner(inputs["image"]))

    assert not KerasModel(network, FEATURES)._twice
    assert not KerasModel(nested, FEATURES)._twice


def test_rows_count_by_their_weights() -> None:
    rows = block(0)
    weighty = Block(rows.indices, rows.dense, rows.labels, weights=np.zeros(len(rows), np.float32))
    model = KerasModel(network, FEATURES)
    before = model.predict(rows)
    model.learn(weighty)
    np.testing.assert_array_equal(model.predict(rows), before)


def test_a_restored_model_goes_on_to_the_bit_dropout_included() -> None:
    def build(schema: Schema) -> Any:
        return network(schema, dropout=0.2)

    model = KerasModel(build, FEATURES)
    for step in range(3):
        model.learn(block(step))
    state = {name: array.copy() for name, array in model.state().items()}
    resumed = KerasModel(build, FEATURES, seed=9)
    resumed.restore(state)
    for step in range(3, 6):
        assert model.learn(block(step)).tobytes() == resumed.learn(block(step)).tobytes()
    for name, array in model.state().items():
        assert array.tobytes() == resumed.state()[name].tobytes(), name


def test_another_functions_state_is_refused() -> None:
    state = KerasModel(network, FEATURES).state()
    other = KerasModel(lambda schema: network(schema, dropout=0.2), FEATURES)
    with pytest.raises(ConfigError, match="of another model or optimizer"):
        other.restore(state)
    name = next(iter(state))
    with pytest.raises(ConfigError, match=r"model\.0 .*was the function changed"):
        KerasModel(network, FEATURES).restore({**state, name: np.zeros((2, 2), np.float32)})


def test_a_written_version_predicts_the_same_and_contains_no_optimizer(tmp_path: Path) -> None:
    model = KerasModel(network, FEATURES)
    for step in range(3):
        model.learn(block(step))
    model.write(tmp_path)
    servable = load(tmp_path, RuntimeOptions())
    (signature,) = servable.signatures.values()
    assert list(map(str, (*signature.inputs, *signature.outputs))) == [
        "age FP32 [rows, 1]",
        "image FP32 [rows, 4]",
        "site INT64 [rows]",
        "words INT64 [rows, 3]",
        "probability FP32 [rows]",
    ]
    rows = block(9)
    answer = servable.predict(model.inputs(rows))["probability"]
    np.testing.assert_allclose(answer, model.predict(rows), rtol=1e-6)
    servable.close()
    data = next((tmp_path / "variables").glob("variables.data*")).stat().st_size
    weights = sum(variable.numpy().nbytes for variable in model.model.variables)
    assert weights <= data < weights * 1.02 + 4096


def test_it_is_two_thirds_smaller_than_what_learning_goes_on_from(tmp_path: Path) -> None:
    schema = Schema(
        fields=(Field(name="label", role="label"), Field(name="site", role="categorical", buckets=2**15))
    )

    def build(schema: Schema) -> Any:
        inputs = inputs_of(schema)
        layer = Embedded(schema.by_name["site"], 16)(inputs["site"])
        return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(layer))

    model = KerasModel(build, Features.of(schema))
    model.write(tmp_path)
    written = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert written < 0.35 * sum(array.nbytes for array in model.state().values())


def test_a_compiled_models_optimizer_is_taken() -> None:
    def build(schema: Schema) -> Any:
        made = network(schema)
        made.compile(optimizer=keras.optimizers.SGD(0.5))
        return made

    assert type(KerasModel(build, FEATURES).optimizer).__name__ == "SGD"
    assert type(KerasModel(network, FEATURES).optimizer).__name__ == "LazyAdam"


def test_a_function_that_fails_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"keras: .* fields site, words, age, image: KeyError: 'user'"):
        KerasModel(lambda schema: Embedded(schema.by_name["user"], 8), FEATURES)


def test_a_model_that_does_not_fit_the_fields_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected a keras\.Model, got int"):
        KerasModel(lambda schema: 3, FEATURES)
    inputs = inputs_of(SCHEMA)
    two = keras.Model(inputs, keras.layers.Dense(2)(inputs["image"]))
    with pytest.raises(ConfigError, match="expected one probability a row"):
        KerasModel(lambda schema: two, FEATURES)
    wrong = {"nothing": keras.Input((1,), name="nothing")}
    with pytest.raises(ConfigError, match="a dict with the inputs site, words"):
        KerasModel(lambda schema: keras.Model(wrong, keras.layers.Dense(1)(wrong["nothing"])), FEATURES)


def test_exact_tables_are_refused() -> None:
    schema = Schema(
        fields=(Field(name="label", role="label"), Field(name="site", role="categorical", keys="exact"))
    )
    with pytest.raises(ConfigError, match="site: exact tables"):
        KerasModel(network, Features.of(schema))


def test_the_function_is_imported_from_the_users_file(tmp_path: Path) -> None:
    file = tmp_path / "clicks.py"
    file.write_text("def build(schema):\n    return 1\n\n\ndef other(schema):\n    return 2\n")
    assert load_build(str(file))(SCHEMA) == 1
    assert load_build(f"{file}:")(SCHEMA) == 1
    assert load_build(f"{file}:other")(SCHEMA) == 2
    with pytest.raises(ConfigError, match="no function 'third'"):
        load_build(f"{file}:third")
    with pytest.raises(ConfigError, match="there is no such Python file"):
        load_build(str(tmp_path / "missing.py:build"))
    file.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="cannot be run: ZeroDivisionError"):
        load_build(str(file))


def test_weights_that_are_no_numbers_are_not_written(tmp_path: Path) -> None:
    model = KerasModel(network, FEATURES)
    model.model.trainable_variables[0].assign(np.full((1000, 8), np.nan, np.float32))
    with pytest.raises(ModelError, match="embeddings holds a weight that is not a finite number"):
        model.write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_version_that_cannot_be_written_is_told_where_others_are(tmp_path: Path) -> None:
    """And not where learning would end by it."""
    file = tmp_path / "clicks.py"
    file.write_text(
        "import keras\nfrom headrace.training.keras import inputs_of\n\n\ndef build(schema):\n"
        "    inputs = inputs_of(schema)\n"
        "    return keras.Model(inputs, keras.layers.Dense(1, activation='sigmoid')(inputs['age']))\n"
    )
    (tmp_path / "taken").write_text("a file")
    model, release = build_keras_model(str(file), FEATURES, 0, Publisher(tmp_path / "taken"))
    assert release is not None
    write = release(Training(rows=1))
    with pytest.raises(FailedPrecondition, match="no version can be published"):
        write()
    model, release = build_keras_model(str(file), FEATURES, 0, Publisher(tmp_path / "clicks", keep=1))
    assert release is not None
    left = tmp_path / "clicks" / ".deleting-7-abc"  # of a run that was killed while it deleted a version
    left.mkdir(parents=True)
    for rows in (1, 2):
        release(Training(rows=rows))()
    assert sorted(path.name for path in (tmp_path / "clicks").iterdir()) == [CONTROL_LOCK, "2"]
    model.learn(block(0))
