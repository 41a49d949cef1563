"""Vectors by a model of the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.model_embedder import LocalModels
from headrace.archive.operations.open_archive import Running, open_embedder
from headrace.base.errors import ConfigError, FailedPrecondition, ModelError, NotFound
from headrace.config import ServerConfig
from headrace.serving.engine import Engine, ModelSpec
from tests.encoder_models import write_letters, write_models
from tests.waiting import until

Open = Callable[..., Embedder]


def models_of(engine: Engine) -> LocalModels:
    """The two callables that whoever puts a process together gives."""
    return LocalModels(
        lambda name, version: engine.manager.ready_now(name, version, None),
        lambda name, version, inputs, output, seconds: engine.predict_blocking(
            ModelSpec(name, version), inputs, outputs=[output], timeout_seconds=seconds
        ),
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_models(tmp_path / "models")


@pytest.fixture
def engine(directory: Path) -> Iterator[Engine]:
    with Engine.in_thread(directory, config=ServerConfig(allow_code=True, poll_seconds=0.05)) as started:
        yield started


@pytest.fixture
def opened(engine: Engine, tmp_path: Path) -> Open:
    def open_one(model: str = "letters", **settings: object) -> Embedder:
        table = {"kind": "model", "model": model, **settings}
        return open_embedder("mine", table, tmp_path, models=models_of(engine))

    return open_one


def test_a_model_of_the_repository_embeds_texts(opened: Open) -> None:
    embedder = opened(output="counts", batch_rows=2)
    assert embedder.dimension == 3
    made = embedder.embed([b"abba", b"", b"cab", b"\xff\0", b"bb"])
    assert not made.failures
    np.testing.assert_array_equal(made.vectors, [[2, 2, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0], [0, 2, 0]])
    scaled = opened(output="counts", normalize=True)
    np.testing.assert_allclose(scaled.embed([b"abb"]).vectors, [[5**-0.5, 2 * 5**-0.5, 0]], rtol=1e-6)
    assert (
        scaled.fingerprint != embedder.fingerprint == opened(output="counts", timeout_seconds=3).fingerprint
    )


def test_a_model_of_numbers_takes_them_as_they_are_written(opened: Open) -> None:
    made = opened("squares").embed([b"3", b"three", b"-4", b"99999999999", b"", b"1" * 5000, b"1.5"])
    np.testing.assert_array_equal(made.vectors[[0, 2]], [[3, 9], [-4, 16]])
    assert sorted(made.failures) == [1, 3, 4, 5, 6]
    assert all(failure.is_final for failure in made.failures.values())
    assert made.failures[1].reason == "expected a number for number INT32 [rows, 1], got b'three'"


def test_one_text_that_the_model_fails_on_fails_alone(opened: Open) -> None:
    made = opened(output="counts").embed([b"a", b"broken", b"b", b"wrong", b"c"])
    np.testing.assert_array_equal(made.vectors[[0, 2, 4]], np.eye(3))
    assert {place: failure.is_final for place, failure in made.failures.items()} == {1: True, 3: True}
    assert made.failures[3].reason == "the encoder fails: a wrong text"


def test_the_version_stays_that_of_the_opening_until_it_is_gone(
    opened: Open, engine: Engine, directory: Path
) -> None:
    embedder = opened(output="counts")
    write_letters(directory, 2, scale=10)
    until_ready(engine, "letters", 2)
    newer = opened(output="counts")
    assert newer.fingerprint != embedder.fingerprint
    np.testing.assert_array_equal(newer.embed([b"ab"]).vectors, [[10, 10, 0]])
    with pytest.raises(FailedPrecondition, match="the encoder's version is no longer served"):
        embedder.embed([b"ab"])


def test_filling_goes_on_with_the_version_that_took_the_others_place(
    engine: Engine, directory: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "archive.toml"
    settings.write_text(
        """
        fill = true
        store = { kind = "memory" }
        queue = { kind = "memory" }
        [spaces.texts]
        embedder = "counts"
        [embedders.counts]
        kind = "model"
        model = "letters"
        output = "counts"
        """
    )
    running = Running(settings, models_of(engine))
    try:
        archive = running.archive
        archive.want("texts", ["ab"])
        until(lambda: bool(archive.lookup("texts", ["ab"]).found.all()))
        write_letters(directory, 2, scale=10)
        until_ready(engine, "letters", 2)
        archive.want("texts", ["abb"])
        until(lambda: len(archive.record("texts").versions) == 2)
        until(lambda: bool(archive.lookup("texts", ["abb"], version=2).found.all()))
        assert archive.lookup("texts", ["abb"], version=2).vectors.tolist() == [[10, 20, 0]]
        assert archive.lookup("texts", ["ab"]).vectors.tolist() == [[1, 1, 0]]
    finally:
        running.close()


def until_ready(engine: Engine, model: str, version: int) -> None:
    async def wait() -> None:
        for _ in range(600):
            if engine.manager.ready_now(model, version, None) and not engine.manager.ready_now(
                model, 1, None
            ):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the version did not come")

    asyncio.run(wait())


@pytest.mark.parametrize(
    ("table", "error", "said"),
    [
        ({"model": "none"}, NotFound, "model: 'none' is not served here"),
        ({"model": "letters", "version": 7}, NotFound, "is not served here"),
        (
            {"model": "letters"},
            ConfigError,
            "output: expected the name of the vector's output, one of counts, length",
        ),
        (
            {"model": "letters", "output": "length"},
            ConfigError,
            r"output length: expected numbers of shape \[1, dimension\], got int64 \[1\]",
        ),
        ({"model": "letters", "input": "texts"}, ConfigError, "input: expected text, got 'texts'"),
        ({"model": "letters", "token_env": "X"}, ConfigError, "url: expected a server's URL"),
        ({}, ConfigError, "model"),
    ],
)
def test_wrong_settings_are_told(
    table: dict[str, object], error: type[Exception], said: str, engine: Engine, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        open_embedder("mine", {"kind": "model", **table}, tmp_path, models=models_of(engine))
    with pytest.raises(ConfigError, match="this process serves no models"):
        open_embedder("mine", {"kind": "model", "model": "letters"}, tmp_path)


def test_a_model_that_fails_on_anything_is_broken(opened: Open, engine: Engine, tmp_path: Path) -> None:
    models = models_of(engine)
    calls = []

    def broken(*asked: object) -> dict[str, np.ndarray]:
        calls.append(asked)
        if len(calls) > 1:
            raise ModelError("out of order")
        return dict(models.predict(*asked))  # type: ignore[arg-type]

    table = {"kind": "model", "model": "squares"}
    embedder = open_embedder("mine", table, tmp_path, models=LocalModels(models.find, broken))
    with pytest.raises(ModelError, match="the encoder fails on every input: out of order"):
        embedder.embed([b"1", b"2"])
