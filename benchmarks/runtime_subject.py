"""A model whose runtime is compared with its library: the table of `runtimes.py` is made of these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.base.tensors import Array, Tensors

COLUMNS = 30

Call = Callable[[], object]


class Subject(NamedTuple):
    """A model, served and alone.

    Attributes:
        write: Writes it into an empty version directory.
        alone: Makes the library's own call for some rows, given the version directory.
        inputs: Makes inputs of some rows.
        allow_code: Whether it is code.
        needs: The package without which it is left out; empty for none.
    """

    write: Callable[[Path], object]
    alone: Callable[[Path, Array], Call]
    inputs: Callable[[Array], Tensors] = lambda rows: {"features": rows}
    allow_code: bool = False
    needs: str = ""
