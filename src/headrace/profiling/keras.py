"""Profiles of Keras models that learn from a stream's fields, by TensorFlow's profiler."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow

from headrace.base.errors import ConfigError
from headrace.profiling.calls import WARM_UP_CALLS, median_microseconds
from headrace.profiling.ctr import random_block
from headrace.profiling.report import Event, Profile
from headrace.stream.block import Features
from headrace.stream.schema import parse_schema
from headrace.training.keras.model import KerasModel, load_build

_BLOCKS = 8
_OPERATION = re.compile(r"(?P<name>[^:]+):(?P<kind>_?[A-Z]\w*)")
_Space = Any  # TensorFlow ships no types


def profile_training(build: str, schema_file: Path, rows: int, calls: int) -> Profile:
    """Profile learning from random rows.

    Args:
        build: ``FILE.py:FUNCTION``.
        schema_file: The stream's schema.
        rows: Number of rows per batch.
        calls: Number of measured batches.

    Raises:
        ConfigError: The function or the schema is wrong, or cannot be read.
    """
    try:
        schema = parse_schema(schema_file.read_bytes(), schema_file.name)
    except OSError as error:
        raise ConfigError(f"--schema: {schema_file} cannot be read: {error.strerror}") from error
    features = Features.of(schema)
    model = KerasModel(load_build(build), features)
    blocks = [random_block(features, rows, seed) for seed in range(_BLOCKS)]
    microseconds = median_microseconds(lambda: model.learn(blocks[0]), max(calls, WARM_UP_CALLS))
    with tempfile.TemporaryDirectory(prefix="headrace-profile-") as folder:
        tensorflow.profiler.experimental.start(folder)
        try:
            for number in range(calls):
                model.learn(blocks[number % _BLOCKS])
        finally:
            tensorflow.profiler.experimental.stop()
        events = [event for file in Path(folder).rglob("*.xplane.pb") for event in _read(file)]
    return Profile("keras", "training", rows, calls, microseconds, events)


def _read(file: Path) -> list[Event]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # noqa: PLC0415 - a module that TensorFlow may move

    space = xplane_pb2.XSpace()
    space.ParseFromString(file.read_bytes())
    return list(events_of(space))


def events_of(space: _Space) -> Iterator[Event]:
    """Yield the operations in the recording of TensorFlow's profiler.

    Args:
        space: The profiler's ``XSpace``.
    """
    for plane in space.planes:
        for number, line in enumerate(plane.lines):
            for event in line.events:
                said = _OPERATION.fullmatch(plane.event_metadata[event.metadata_id].name)
                if said is None:  # threads, executors and the profiler itself
                    continue
                start = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
                yield Event(said["name"], said["kind"], start, event.duration_ps / 1e6, thread=number)
