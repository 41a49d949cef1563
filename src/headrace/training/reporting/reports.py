"""Wiring of a run's observers, and its output at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from numba.core import event

from headrace.base.errors import HeadraceError
from headrace.training.reporting.plot import Plot
from headrace.training.reporting.progress import JsonReport, Observer, Progress, TerminalReport, Warnings


@contextmanager
def told_of_compiling(errors: TextIO, clear: Callable[[], None]) -> Iterator[None]:
    """On a terminal, announce the first compilation of a kernel in this context.

    Args:
        errors: Stream to which it is written.
        clear: Clears the status line.
    """
    if not errors.isatty():
        yield
        return
    listener = _Compiling(errors, clear)
    with event.install_listener("numba:compile", listener):
        yield


class _Compiling(event.Listener):
    def __init__(self, errors: TextIO, clear: Callable[[], None]) -> None:
        self._errors = errors
        self._clear = clear
        self._said = False

    def on_start(self, happened: object) -> None:
        if not self._said:
            self._said = True
            self._clear()
            self._errors.write(
                "headrace: compiling kernels, which may take a minute; later runs reuse them\n"
            )
            self._errors.flush()

    def on_end(self, happened: object) -> None:
        """Do nothing: the progress line takes over."""


class Reports:
    """The output of a run.

    Attributes:
        observers: Observers of the run's events.
    """

    def __init__(
        self,
        output: TextIO,
        errors: TextIO,
        plot: Plot | None,
        others: Sequence[Observer] = (),
        *,
        windows: bool = True,
    ) -> None:
        """Choose the observers.

        Args:
            output: Stream for windows and the summary.
            errors: Stream for progress and warnings.
            plot: Plot to draw at the end; None for none.
            others: Further observers.
            windows: Whether to write windows. They are never written if both streams are terminals; the
                summary always is.
        """
        self._errors = errors
        self._plot = plot
        self._lines, self._terminal = JsonReport(output), TerminalReport(errors)
        told: list[Observer] = [self._terminal] if errors.isatty() else []
        if windows and not (errors.isatty() and output.isatty()):
            told.append(self._lines)
        self.observers: list[Observer] = [*told, Warnings(errors), *([plot] if plot else []), *others]

    def resume(self, progress: Progress) -> None:
        """Continue the output of an earlier part of the run.

        Args:
            progress: Progress with the versions that were listed by the last window's line.
        """
        self._lines.resumed(progress)
        self._terminal.resumed(progress)

    def clear(self) -> None:
        """Clear the status line."""
        self._terminal.clear()

    def end(self, summary: Mapping[str, object], error: str | None) -> str | None:
        """Draw the plot, and write the summary and the error.

        Args:
            summary: Last line of the run.
            error: Error text of the run; None if it succeeded.

        Returns:
            The error text of the run, or else of drawing or writing; None if all succeeded.
        """
        self.clear()
        undrawn = self._undrawn()
        self._lines.write(summary)
        error = error or undrawn or self._lines.problem
        if error is not None:
            with contextlib.suppress(OSError):  # the exit code reports it, too
                self._errors.write(f"headrace: {error}\n")
        return error

    def _undrawn(self) -> str | None:
        """Draw the run; return the error text, or None."""
        if self._plot is not None and self._plot.points:
            try:
                self._plot.draw()
            except HeadraceError as error:
                return error.message
        return None


@contextmanager
def telemetry(host: str, port: int | None, errors: TextIO, *, publishes: bool) -> Iterator[list[Observer]]:
    """Serve Prometheus metrics, if a port is given.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 for any free port, None to serve nothing.
        errors: Stream to which the address is written.
        publishes: Whether the run publishes versions.

    Yields:
        The observers to notify of the run's events.
    """
    if port is None:
        yield []
        return
    from headrace.telemetry.metrics_port import answering  # noqa: PLC0415 - only when asked for
    from headrace.training.reporting.telemetry import Telemetry  # noqa: PLC0415 - as above

    numbers = Telemetry(publishes=publishes)
    with answering(numbers, host, port, errors):
        yield [numbers]
