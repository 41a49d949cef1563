"""What a runtime brings to the conformance suite: small real models, and how to call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.base.tensors import Tensors
from headrace.runtimes.registry import RuntimeOptions


@dataclass(frozen=True)
class Example:
    """One model.

    Attributes:
        name: What the test is called.
        write: Writes it into an empty version directory.
        inputs: Makes inputs of some rows, the same for the same number; the first rows are always the same.
        signature: Its inputs and outputs, as people write them.
        options: What it is loaded with.
        rows: The only number of rows that it takes; None for any.
        tolerance: How far a row alone may be from the same row in a batch.
    """

    name: str
    write: Callable[[Path], object]
    inputs: Callable[[int], Tensors]
    signature: tuple[str, ...]
    options: RuntimeOptions = field(default_factory=RuntimeOptions)
    rows: int | None = None
    tolerance: float = 1e-6

    def row_counts(self) -> tuple[int, ...]:
        """The numbers of rows to try."""
        return (1, 2, 7, 300) if self.rows is None else (self.rows,)


@dataclass(frozen=True)
class RuntimeUnderTest:
    """One runtime.

    Attributes:
        kind: Its name.
        file: The file that it recognises a version directory by.
        broken: Contents of that file which cannot be loaded.
        examples: Models that work.
        failing: A model whose ``inputs`` make it fail, and only those; None if no inputs can.
        large: A model that holds at least a megabyte.
        knows_options: Whether the runtime has options of its own, rather than handing them to the model.
    """

    kind: str
    file: str
    broken: tuple[bytes, ...]
    examples: tuple[Example, ...]
    failing: Example | None
    large: Example
    knows_options: bool = True
