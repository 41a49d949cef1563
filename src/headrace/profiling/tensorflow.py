"""Profiles of SavedModels by TensorFlow's trace of a session's run: the operations that really ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.profiling.calls import WARM_UP_CALLS, inputs_for, median_microseconds
from headrace.profiling.report import Event, Profile
from headrace.runtimes import tensorflow
from headrace.runtimes.options import RuntimeOptions

_Statistics = Any  # TensorFlow ships no types


def profile_serving(file: Path, options: RuntimeOptions, rows: int, calls: int) -> Profile:
    """Profile a model's default signature as it is served.

    Args:
        file: The ``saved_model.pb``.
        options: The settings that it is served with.
        rows: Number of rows per call, if the model takes any number.
        calls: Number of measured calls.

    Raises:
        LoadError: The model cannot be loaded.
        ModelError: The model fails on generated inputs.
    """
    servable = tensorflow.load(file, options)
    inputs = inputs_for(servable, file.parent, rows)
    microseconds = median_microseconds(lambda: servable.predict(inputs), calls)
    events: list[Event] = []
    for number in range(WARM_UP_CALLS + calls):
        statistics = servable.predict_traced(inputs)
        if number >= WARM_UP_CALLS:
            events += events_of(statistics)
    servable.close()
    measured = len(next(iter(inputs.values())))
    return Profile("tensorflow", "serving", measured, calls, microseconds, events)


def events_of(statistics: _Statistics) -> list[Event]:
    """Return the operations of one run.

    Args:
        statistics: TensorFlow's ``StepStats``.
    """
    events = []
    for device in statistics.dev_stats:
        for node in device.node_stats:
            kind = _kind(node)
            nanoseconds = node.op_end_rel_nanos - node.op_start_rel_nanos
            if not kind or nanoseconds <= 0:
                continue
            start = (node.all_start_nanos + node.op_start_rel_nanos) / 1e3
            name = node.node_name.removeprefix("StatefulPartitionedCall/")
            events.append(Event(name, kind, start, nanoseconds / 1e3, _shape(node), int(node.thread_id)))
    return events


def _kind(node: _Statistics) -> str:
    """Return ``Kind`` of ``name = Kind(inputs)``; "" for nodes that are no operation of the model."""
    _, there, said = node.timeline_label.partition(" = ")
    kind: str = said.partition("(")[0]
    return "" if not there or kind in ("NoOp", "_Arg", "_Retval", "_SOURCE", "_SINK", "Const") else kind


def _shape(node: _Statistics) -> str:
    shapes = [output.tensor_description.shape for output in node.output]
    return ", ".join(str([int(axis.size) for axis in shape.dim]) for shape in shapes)
