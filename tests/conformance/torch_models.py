"""Real models of PyTorch for the conformance suite; only in the environment of ``make test-torch``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.tensors import Tensors
from headrace.runtimes.registry import RuntimeOptions
from tests.conformance.runtime_example import Example, RuntimeUnderTest

_RANDOM = np.random.default_rng(7)
_FEATURES = _RANDOM.normal(size=(300, 16)).astype(np.float32)
_KEYS = _RANDOM.integers(0, 100, (300, 3))
_CODE = RuntimeOptions(allow_code=True)


def network(width: int = 8) -> Any:
    """Layers one after the other."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 3)).eval()


def lookup() -> Any:
    """Named inputs and outputs, and a table."""
    import torch

    class Lookup(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(100, 4)
            self.score = torch.nn.Linear(28, 1)

        def forward(self, features: Any, keys: Any) -> dict[str, Any]:
            both = torch.cat([features, self.table(keys).flatten(1)], 1)
            return {"both": both, "score": self.score(both)}

    torch.manual_seed(0)
    return Lookup().eval()


def exported(module: Callable[[], Any], inputs: Callable[[int], Tensors]) -> Callable[[Path], None]:
    """Writes a version directory with a program of torch.export."""

    def write(directory: Path) -> None:
        import torch

        example = tuple(torch.from_numpy(one) for one in inputs(4).values())
        rows = torch.export.Dim("rows")
        program = torch.export.export(module(), example, dynamic_shapes=tuple({0: rows} for _ in example))
        torch.export.save(program, directory / "model.pt2")

    return write


def traced(module: Callable[[], Any], inputs: Callable[[int], Tensors]) -> Callable[[Path], None]:
    """Writes a version directory with TorchScript."""

    def write(directory: Path) -> None:
        import torch

        example = tuple(torch.from_numpy(one) for one in inputs(4).values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # that TorchScript is deprecated
            torch.jit.trace(module(), example, strict=False).save(directory / "model.pt")

    return write


def _features(rows: int) -> Tensors:
    return {"input": _FEATURES[:rows].copy()}


def named(rows: int) -> Tensors:
    return {"features": _FEATURES[:rows].copy(), "keys": _KEYS[:rows].copy()}


_LOOKUP = ("features FP32 [rows, 16]", "keys INT64 [rows, 3]", "both FP32 [rows, 28]", "score FP32 [rows, 1]")
_INPUTS = "features FP32 [rows, 16]; keys INT64 [rows, 3]"
TORCH = RuntimeUnderTest(
    kind="torch",
    file="model.pt2",
    broken=(b"", b"not a program of PyTorch", b"PK\x03\x04" + bytes(40)),
    examples=(
        Example(
            "network",
            exported(network, _features),
            _features,
            ("input FP32 [rows, 16]", "output FP32 [rows, 3]"),
            _CODE,
        ),
        Example("lookup", exported(lookup, named), named, _LOOKUP, _CODE),
        Example(
            "script",
            traced(lookup, named),
            named,
            _LOOKUP,
            RuntimeOptions(allow_code=True, options={"inputs": _INPUTS}),
        ),
    ),
    failing=Example(
        "lookup",
        exported(lookup, named),
        lambda rows: {**named(rows), "keys": np.full((rows, 3), 999)},
        (),
        _CODE,
    ),
    large=Example("large", exported(lambda: network(20_000), _features), _features, (), _CODE),
)
