"""Everybody who is told of a run, put together: what is shown where, and what is said at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from headrace.errors import HeadraceError
from headrace.training.reporting.lines import JsonReport, TerminalReport, Warnings
from headrace.training.reporting.plot import Plot
from headrace.training.reporting.progress import Observer


class Reports:
    """What a run says.

    Attributes:
        observers: Who is told while it goes on.
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
        """Decide who is told.

        Args:
            output: Where windows and the summary go.
            errors: Where people are told how it goes.
            plot: What draws the run in the end; None for nothing.
            others: Who else is told.
            windows: Whether windows are written, where not only people look; else the summary alone.
        """
        self._errors = errors
        self._plot = plot
        self._lines, self._terminal = JsonReport(output), TerminalReport(errors)
        told: list[Observer] = [self._terminal] if errors.isatty() else []
        if windows and not (errors.isatty() and output.isatty()):
            told.append(self._lines)
        self.observers: list[Observer] = [*told, Warnings(errors), *([plot] if plot else []), *others]

    def end(self, summary: Mapping[str, object], error: str | None) -> str | None:
        """Say how a run ended.

        Args:
            summary: Its last line.
            error: What went wrong; None if nothing did.

        Returns:
            What went wrong, if only in saying it; None if nothing did.
        """
        self._terminal.clear()
        error = error or self._undrawn()
        self._lines.write(summary)
        error = error or self._lines.problem
        if error is not None:
            with contextlib.suppress(OSError):  # the exit code says it, too
                self._errors.write(f"headrace: {error}\n")
        return error

    def _undrawn(self) -> str | None:
        """Draw the run; why that could not be done, or None."""
        if self._plot is not None and self._plot.points:
            try:
                self._plot.draw()
            except HeadraceError as error:
                return error.message
        return None


@contextmanager
def telemetry(host: str, port: int | None, errors: TextIO, *, publishes: bool) -> Iterator[list[Observer]]:
    """Answer Prometheus, if that is asked for.

    Args:
        host: At which address.
        port: On which port; 0 for any, None not to.
        errors: Where people are told where.
        publishes: Whether versions are expected.

    Yields:
        Who must be told of the run.
    """
    if port is None:
        yield []
        return
    from headrace.frontends.metrics_port import answering  # noqa: PLC0415 - only when asked for
    from headrace.training.reporting.telemetry import Telemetry  # noqa: PLC0415 - as above

    numbers = Telemetry(publishes=publishes)
    with answering(numbers, host, port, errors):
        yield [numbers]
