"""Message on a terminal while kernels compile, which delays the first run of a kind of model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from numba.core import event


@contextmanager
def told_of_compiling(errors: TextIO) -> Iterator[None]:
    """Write once that kernels are being compiled, if that happens in this context on a terminal."""
    if not errors.isatty():
        yield
        return
    listener = _Compiling(errors)
    with event.install_listener("numba:compile", listener):
        yield


class _Compiling(event.Listener):
    def __init__(self, errors: TextIO) -> None:
        self._errors = errors
        self._said = False

    def on_start(self, happened: object) -> None:
        if not self._said:
            self._said = True
            self._errors.write(
                "headrace: compiling kernels, which may take a minute; later runs reuse them\n"
            )
            self._errors.flush()

    def on_end(self, happened: object) -> None:
        """Do nothing: the progress line takes over."""
