"""Values with rows of their own, from the stream to the answer: ``headrace train`` as real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headrace.base.tensors import Array, Tensors
from headrace.ctr.factory import create
from headrace.ctr.files.model_files import arrays_of, read_description, read_model
from headrace.ctr.models.vocabulary import GONE
from headrace.runtimes import registry
from headrace.runtimes.options import RuntimeOptions
from headrace.stream.block_reader import Reader, ReadSettings
from headrace.stream.hashing import keys_of, rows_of
from headrace.stream.schema import Field
from headrace.versions.layout import version_directories
from tests.conformance.ctr_models import EXACT, field_inputs, write
from tests.end_to_end.test_context_once import (
    open_inference_over_grpc,
    open_inference_over_rest,
    tensorflow_serving_over_grpc,
    tensorflow_serving_over_rest,
)
from tests.running_server import RunningServer
from tests.streams import batch_of, schema_of, stream_of

ROWS, HALF, BLOCK = 12_000, 6144, 1024
EXPIRE_ROWS = 3000

SCHEMA = schema_of(
    clicked={"role": "label"},
    user={"text": True, "keys": "exact", "buckets": 1000, "admit": 2, "expire_rows": EXPIRE_ROWS},
    page={"buckets": 64, "context": True},
    tags={"keys": "exact", "buckets": 128, "admit": 1, "values": 2, "expire_rows": EXPIRE_ROWS},
    age={"role": "dense"},
)


def columns(rows: int) -> pa.RecordBatch:
    """Users come and go: each row's is one of the 200 of its time, and each user likes clicking or not."""
    random = np.random.default_rng(5)
    users = np.arange(rows) // 20 + random.integers(0, 200, rows)
    likes = np.random.default_rng(6).normal(size=rows + 200)[users]
    tags = random.integers(0, 40, (rows, 2))
    clicked = random.random(rows) < 1 / (1 + np.exp(1 - 2 * likes))
    return batch_of(
        clicked=clicked.astype(np.int8),
        user=[f"user {one}" for one in users],
        page=random.integers(0, 30, rows),
        tags=[pair[: 1 + row % 2] for row, pair in enumerate(tags.tolist())],
        age=random.normal(size=rows).astype(np.float32),
    )


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows as a stream."""
    file = tmp_path_factory.mktemp("stream") / "rows.arrows"
    file.write_bytes(stream_of(columns(ROWS), SCHEMA))
    return file


@pytest.fixture(scope="module")
def whole_of(stream: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What an undisturbed run of a kind of model publishes; each is made once."""

    @cache
    def version(kind: str) -> Path:
        directory = tmp_path_factory.mktemp(kind)
        train(stream, *model_options(kind), "--publish", directory)
        (only,) = version_directories(directory).values()
        return only

    return version


def model_options(kind: str) -> tuple[object, ...]:
    return ("--model", kind, "--factors", 4, *(("--hidden", "8") if kind == "deepfm" else ()))


def train(*options: object) -> dict[str, Any]:
    """The last line of a run."""
    words = [sys.executable, "-m", "headrace", "train", *map(str, options)]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def requests(rows: int) -> tuple[Tensors, Tensors]:
    """The last rows of the stream, and some users that are unknown or have expired: by field, and joined."""
    batch = columns(ROWS).slice(ROWS - rows)
    users = [*batch["user"].to_pylist()[:-3], "user 3", "nobody", ""]
    tags = np.array([[*one, -1][:2] for one in batch["tags"].to_pylist()], np.int64)
    by_field = {
        "user": np.array([one.encode() for one in users], object),
        "page": batch["page"].to_numpy(),
        "tags": tags,
        "age": batch["age"].to_numpy(),
    }
    keys = [keys_of(by_field[name], SCHEMA.by_name[name]).reshape(rows, -1) for name in ("tags", "user")]
    joined = {
        "context": rows_of(by_field["page"], SCHEMA.by_name["page"], 0)[:, None],
        "candidate_keys": np.concatenate(keys, axis=1),
        "candidate_dense": by_field["age"][:, None],
    }
    return by_field, joined


def served(directory: Path, inputs: Tensors, signature: str) -> Array:
    servable = registry.load(directory, RuntimeOptions())
    servable.signatures[signature].check(inputs, exact=True)
    answer = servable.predict(inputs, signature)["probability"]
    servable.close()
    return answer


def are_the_same_model(left: Path, right: Path) -> None:
    arrays = [arrays_of(read_model(directory)[2]) for directory in (left, right)]
    assert arrays[0].keys() == arrays[1].keys()
    for name in arrays[0]:
        assert np.array_equal(arrays[0][name], arrays[1][name]), name


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["fm", "deepfm"])
def test_an_interrupted_run_ends_with_the_same_rows_for_the_same_values(
    kind: str, stream: Path, whole_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Resumed from a checkpoint, published as patches: to the bit what an undisturbed run publishes."""
    saved = ("--checkpoint", tmp_path / "saved", "--publish", tmp_path / "patched", "--patch", "--keep", 0)
    often = ("--every-rows", 2 * BLOCK)
    model, whole = model_options(kind), whole_of(kind)
    train(stream, *model, "--rows", HALF, *saved, *often)
    train(stream, *model, "--resume", *saved, *often)
    newest = version_directories(tmp_path / "patched")[max(version_directories(tmp_path / "patched"))]
    are_the_same_model(newest, whole)
    stored = read_description(newest).arrays["keys.user"]
    assert stored.shape == (1000,)

    by_field, joined = requests(200)
    answers = served(whole, by_field, "serving_default")
    assert served(newest, by_field, "serving_default").tolist() == answers.tolist()
    assert served(newest, joined, "rows").tolist() == answers.tolist()


@pytest.mark.rest
def test_a_version_knows_users_by_name_and_answers_what_the_trainer_predicts(
    stream: Path, whole_of: Callable[[str], Path]
) -> None:
    whole = whole_of("fm")
    settings, features, weights = read_model(whole)
    keys = weights.keys["user"]
    assert keys[0] == 0
    living = keys[(keys != 0) & (keys != GONE)]
    assert len(set(living.tolist())) == len(living) > 100
    recent = {one.encode() for one in columns(ROWS)["user"].to_pylist()[-EXPIRE_ROWS:]}
    known = keys_of(np.array(sorted(recent), object), SCHEMA.by_name["user"])
    assert set(living.tolist()) <= set(known.tolist()), "nobody who has not come for long has a row"

    model = create(settings, features)
    with stream.open("rb") as file:
        with Reader(file, ReadSettings(batch_rows=settings.batch_rows)) as reader:
            for block in reader:
                model.learn(block)
        last = block.part(len(block) - 100, len(block))
    by_field, _ = requests(100)
    by_field["user"] = np.array([one.encode() for one in columns(ROWS)["user"].to_pylist()[-100:]], object)
    # Serving adds up in another order than learning does: a few last bits of a probability.
    assert np.allclose(served(whole, by_field, "serving_default"), model.predict(last), rtol=0, atol=5e-7)


@pytest.mark.rest
def test_rows_that_wait_for_their_labels_keep_their_values(stream: Path, tmp_path: Path) -> None:
    """With late labels a value is admitted when it is learnt; a checkpoint holds the values that wait."""
    batch = columns(ROWS)
    times = pa.array(np.arange(ROWS) * 1_000_000 + 1)
    schema = msgspec.structs.replace(SCHEMA, fields=(*SCHEMA.fields, Field(name="at", role="timestamp")))
    late = tmp_path / "late.arrows"
    late.write_bytes(
        stream_of(batch_of(**{name: batch[name] for name in batch.schema.names}, at=times), schema)
    )
    options = ("--model", "lr", "--label-delay-seconds", 2500)
    whole = train(late, *options, "--publish", tmp_path / "whole")
    saved = ("--checkpoint", tmp_path / "saved")
    train(late, *options, "--rows", HALF, *saved)
    resumed = train(late, *options, "--resume", *saved, "--publish", tmp_path / "resumed")
    assert resumed["logloss"] == whole["logloss"]
    newest = [max(version_directories(tmp_path / name).items())[1] for name in ("whole", "resumed")]
    are_the_same_model(*newest)


def test_hashes_come_over_both_protocols_and_the_context_once(tmp_path: Path) -> None:
    """Values by name, and their hashes, which need all 64 bits, get the same answers from a server."""
    (tmp_path / "ctr/1").mkdir(parents=True)
    write(tmp_path / "ctr/1", "fm", EXACT)
    fields, by_field = EXACT.by_name, field_inputs(6)
    for field in fields.values():
        if field.context:
            by_field[field.name] = by_field[field.name][:1]
    keys = {name: keys_of(by_field[name], fields[name]) for name in ("topics", "user", "words")}
    joined = {
        "context": by_field["hour"].astype(np.uint32)[:, None],
        "context_keys": np.concatenate([keys["topics"], keys["user"][:, None]], axis=1),
        "context_dense": by_field["age"][:, None],
        "candidate": rows_of(by_field["ad"], fields["ad"], 0)[:, None],
        "candidate_keys": keys["words"],
        "candidate_dense": np.concatenate([by_field["image"], by_field["price"][:, None]], axis=1),
    }
    assert joined["candidate_keys"].max() > 2**63
    with RunningServer(tmp_path) as server:
        wanted = tensorflow_serving_over_rest(server, by_field, "serving_default")
        assert len(set(wanted)) > 1
        ways = (open_inference_over_rest, open_inference_over_grpc, tensorflow_serving_over_grpc)
        answers = {way.__name__: way(server, joined) for way in ways}
        answers["REST in columns"] = tensorflow_serving_over_rest(server, joined)
    for name, answer in answers.items():
        assert answer == pytest.approx(wanted, abs=1e-7), name
