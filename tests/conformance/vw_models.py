"""Real models of Vowpal Wabbit for the conformance suite, trained by ``tests/data/vw/make.py``."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.tensors import STRING, Tensors
from tests.conformance.runtime_example import Example, RuntimeUnderTest

DATA = Path(__file__).resolve().parents[1] / "data" / "vw"

_SIGNATURE = ("example BYTES [rows]", "prediction FP32 [rows]")


@cache
def known() -> Any:
    """VW's answers, and what was asked."""
    return json.loads((DATA / "answers.json").read_text("utf-8"))


def dump(name: str) -> bytes:
    """A model's file."""
    return (DATA / f"{name}.vw.txt").read_bytes()


def rows_of(rows: int) -> Tensors:
    """Lines of VW's text format."""
    lines = [line.encode() for line in known()["lines"] if "3.4e38" not in line]
    return {"example": np.array([lines[row % len(lines)] for row in range(rows)], STRING)}


def _save(content: Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda directory: (directory / "model.vw.txt").write_bytes(content())


def _large() -> bytes:
    """As many weights as 18 bits have."""
    weights = b"".join(b"%d:%d.5\n" % (index, index % 7) for index in range(1 << 18))
    return dump("plain").partition(b"\n:1\n")[0] + b"\n:0\n" + weights


def _no_bar(rows: int) -> Tensors:
    return {"example": np.full(rows, b"age:31", STRING)}


VW = RuntimeUnderTest(
    kind="vw",
    file="model.vw.txt",
    broken=(b"", b"not a dump of VW", dump("plain")[:100], dump("plain")[:-3]),
    examples=(
        Example("linear", _save(lambda: dump("plain")), rows_of, _SIGNATURE),
        Example("any-triples", _save(lambda: dump("any-triples")), rows_of, _SIGNATURE),
        Example("sparse", _save(lambda: dump("wide")), rows_of, _SIGNATURE),
    ),
    failing=Example("linear", _save(lambda: dump("plain")), _no_bar, ()),
    large=Example("large", _save(_large), rows_of, ()),
)
