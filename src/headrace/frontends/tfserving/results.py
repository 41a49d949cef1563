"""Results of Classify and Regress in JSON and protobuf, serialized in steps with other work in between."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.base.tensors import Array
from headrace.frontends.tfserving import json_bodies
from headrace.frontends.tfserving.examples import Classes
from headrace.frontends.wire import json_output, protos
from headrace.frontends.wire.json_output import printing_cost
from headrace.frontends.wire.time_slicer import Steps

_ClassificationResult = protos.message("tensorflow.serving.ClassificationResult")
_RegressionResult = protos.message("tensorflow.serving.RegressionResult")

Result = Classes | Array
"""Classes, or a value for each row."""

_CLASS_COST = 4  # relative to a number, as each class is an object


def cost(result: Result) -> int:
    """Return the cost of serializing a result, in numbers."""
    if isinstance(result, Classes):
        return _CLASS_COST * result.scores.size + printing_cost(result.names)
    return int(result.size)


def needs_slices(*results: Result) -> bool:
    """Return whether serializing the results takes long enough to need the time slicer."""
    return sum(map(cost, results)) > json_output.PRINTED_AT_ONCE


def print_result(result: Result) -> Steps[bytes]:
    """Serialize REST's answer: pairs of a name and a score, or values."""
    parts = []
    for rows in _parts(result):
        if isinstance(result, Classes):
            scores = json_bodies.json_values("", result.scores[rows])
            names = result.texts(rows)
            printed = json_bodies.print_json(
                [list(zip(*pair, strict=True)) for pair in zip(names, scores, strict=True)]
            )
        else:
            printed = json_bodies.print_json(json_bodies.json_values("", result[rows]))
        parts.append(printed[1:-1])
        yield
    return b'{"results":[' + b",".join(parts) + b"]}"


def serialized(result: Result) -> Steps[bytes]:
    """Serialize a ClassificationResult or RegressionResult in parts, which concatenate to the message."""
    parts = []
    for rows in _parts(result):
        if isinstance(result, Classes):
            written = _classification(result, rows)
        else:
            written = _RegressionResult(regressions=[{"value": value} for value in result[rows].tolist()])
        parts.append(written.SerializeToString())
        yield
    return b"".join(parts)


def _parts(result: Result) -> Iterator[slice]:
    count = len(result.scores) if isinstance(result, Classes) else len(result)
    step = max(1, json_output.PRINTED_AT_ONCE * count // max(1, cost(result)))
    for start in range(0, count, step):
        yield slice(start, start + step)


def _classification(result: Classes, rows: slice) -> protos.Message:
    written = _ClassificationResult()
    for names, scores in zip(result.texts(rows), result.scores[rows].tolist(), strict=True):
        classes = written.classifications.add().classes
        for name, score in zip(names, scores, strict=True):
            classes.add(label=name, score=score)
    return written
