"""Progress of a run while it learns: its pace, the interface of its observers, and its output.

The output is a line on a terminal for people, and a JSON object per window for machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TextIO

from headrace.base.terminal import Line
from headrace.evaluation.progressive_validation import Trend, Window
from headrace.evaluation.tallies import Score
from headrace.training.releasing.publishing import Publication


class Progress(NamedTuple):
    """Progress of a run.

    Attributes:
        rows: Rows taken from the stream, from its start.
        seconds: Time taken, including earlier parts of a resumed run.
        idle_seconds: Part of that time in which the learner waited for rows.
        stream_bytes: Bytes read.
        pending_rows: Rows that wait for their labels; None if labels come with the rows.
        versions: Numbers of the versions published.
    """

    rows: int = 0
    seconds: float = 0.0
    idle_seconds: float = 0.0
    stream_bytes: int = 0
    pending_rows: int | None = None
    versions: tuple[int, ...] = ()


class Pace(NamedTuple):
    """Pace between two points of a run.

    Attributes:
        rows_per_second: Rows taken from the stream per second.
        idle_share: Share of the time in which the learner waited for rows, 0 to 1.
    """

    rows_per_second: float
    idle_share: float

    @classmethod
    def between(cls, before: Progress, now: Progress) -> Pace:
        """Return the pace from one point to another."""
        seconds = max(now.seconds - before.seconds, 1e-9)
        idle = min(max((now.idle_seconds - before.idle_seconds) / seconds, 0.0), 1.0)
        return cls((now.rows - before.rows) / seconds, idle)


class Observer(Protocol):
    """Receives a run's events in the learner's thread, which waits for each method."""

    def moved(self, progress: Progress) -> None:
        """Handle progress, after each block."""

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Handle a closed window."""

    def published(self, publication: Publication, rows: int) -> None:
        """Handle a published version, taken from the model after ``rows`` rows of the stream."""

    def failed(self, what: str) -> None:
        """Handle a failure that does not end the run."""


_DIGITS = 9

_TRENDS: dict[Trend, str] = {
    "jumped": "predictions are far worse than in the windows before: users' behaviour or the input has "
    "changed abruptly",
    "tired": "predictions have been worse in the last windows than in earlier ones: behaviour is harder to "
    "predict now, or the model does not keep up; try other settings with --search",
}


def described(score: Score) -> dict[str, float | int | None]:
    """Return a score for JSON, rounded; undefined metrics are None, an unknown optimal logloss is omitted."""
    said: dict[str, float | int | None] = {"rows": score.rows, "logloss": _rounded(score.logloss)}
    for name in ("auc", "calibration", "normalized_entropy", "click_rate"):
        said[name] = _rounded(getattr(score, name))
    if score.optimal_logloss is not None:
        said["optimal_logloss"] = _rounded(score.optimal_logloss)
    return said


class JsonReport:
    """Writer of one JSON object per window, each on a line of its own.

    Attributes:
        problem: Error text of a line that could not be written; None if all could, or the reader closed the
            pipe.
    """

    def __init__(self, output: TextIO) -> None:
        """Write to a text stream."""
        self._output = output
        self._said_versions = 0
        self.problem: str | None = None

    def resumed(self, progress: Progress) -> None:
        """Continue after the last window, at which this progress was reported."""
        self._said_versions = len(progress.versions)

    def moved(self, progress: Progress) -> None:
        """Do nothing: windows are written."""

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Write the window as a line."""
        line: dict[str, object] = {"window": window.number, "last_row": window.last_row}
        line |= described(window.score)
        line |= {"seconds": round(progress.seconds, 3), **_paced(pace)}
        if progress.pending_rows is not None:
            line["pending_rows"] = progress.pending_rows
        if window.trend is not None:
            line["trend"] = window.trend
        line["versions"] = list(progress.versions[self._said_versions :])
        self._said_versions = len(progress.versions)
        if window.slices:
            line["slices"] = {
                name: {value: described(score) for value, score in scores.items()}
                for name, scores in window.slices.items()
            }
        self.write(line)

    def published(self, publication: Publication, rows: int) -> None:
        """Do nothing: the next window's line lists the version."""

    def failed(self, what: str) -> None:
        """Do nothing: ``Warnings`` writes it to standard error."""

    def write(self, line: Mapping[str, object]) -> None:
        """Write one object as a line; a failed write does not raise."""
        try:
            self._output.write(json.dumps(line, allow_nan=False) + "\n")
            self._output.flush()
        except BrokenPipeError:
            # The reader closed the pipe. Learning goes on, and further lines are discarded.
            with open(os.devnull, "wb") as discarded:
                os.dup2(discarded.fileno(), self._output.fileno())
        except OSError as error:
            # Learning goes on. The next line may succeed, for example if a full disk has room again.
            self.problem = f"standard output cannot be written: {error.strerror or error}"


class TerminalReport:
    """A status line on a terminal that is rewritten in place."""

    def __init__(self, output: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        """Write to a terminal.

        Args:
            output: The terminal.
            now: Clock, in seconds.
        """
        self._line = Line(output, now, shown=True)
        self._before = Progress()
        self._window = ""

    def resumed(self, progress: Progress) -> None:
        """Show the pace since this progress until the first window."""
        self._before = progress

    def moved(self, progress: Progress) -> None:
        """Refresh the line, at most ten times a second."""
        if not self._line.due:
            return
        pace = Pace.between(self._before, progress)
        parts = [f"{progress.rows:,} rows", f"{pace.rows_per_second:,.0f}/s"]
        if self._window:
            parts.append(self._window)
        parts.append(f"idle {pace.idle_share:.0%}")
        if progress.pending_rows is not None:
            parts.append(f"{progress.pending_rows:,} pending")
        if progress.versions:
            parts.append(f"version {progress.versions[-1]}")
        self._line.show("  ".join(parts))

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Show the window's scores from now on; clear the line for a trend, which ``Warnings`` writes."""
        if window.trend is not None:
            self.clear()
        score = window.score
        self._window = "  ".join(
            f"{name} {value:.5f}"
            for name, value in (
                ("logloss", score.logloss),
                ("optimal", score.optimal_logloss),
                ("AUC", score.auc),
                ("calibration", score.calibration),
            )
            if value is not None
        )
        self._before = progress

    def published(self, publication: Publication, rows: int) -> None:
        """Do nothing: the line shows the newest version."""

    def failed(self, what: str) -> None:
        """Clear the line for the failure, which ``Warnings`` writes."""
        self.clear()

    def clear(self) -> None:
        """Clear the line."""
        self._line.clear()


class Warnings:
    """Writer of warnings to standard error: failures that do not end the run, and trends."""

    def __init__(self, output: TextIO) -> None:
        """Write to a text stream."""
        self._output = output
        self._trend: Trend | None = None

    def moved(self, progress: Progress) -> None:
        """Do nothing."""

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Warn of the window's trend if it differs from that of the window before."""
        if window.trend is not None and window.trend != self._trend:
            self.failed(f"window {window.number}, row {window.last_row:,}: {_TRENDS[window.trend]}")
        self._trend = window.trend

    def published(self, publication: Publication, rows: int) -> None:
        """Do nothing."""

    def failed(self, what: str) -> None:
        """Write the failure."""
        # Standard error may itself be a file on a full disk.
        with contextlib.suppress(OSError):
            self._output.write(f"headrace: {what}\n")
            self._output.flush()


def _paced(pace: Pace) -> dict[str, float]:
    return {"rows_per_second": round(pace.rows_per_second, 1), "idle_share": round(pace.idle_share, 4)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def summary(total: Score, progress: Progress, stopped: str) -> dict[str, object]:
    """Return the last line of a run.

    Args:
        total: Score of all rows.
        progress: Progress at the end of the run.
        stopped: Reason for the end: ``end``, ``rows``, ``error``, ``diverged``, ``interrupt`` or
            ``terminate``.
    """
    scores = described(total)
    del scores["rows"]
    said: dict[str, object] = {"rows": progress.rows, "seconds": round(progress.seconds, 3), **scores}
    said["versions"] = list(progress.versions)
    said |= _paced(Pace.between(Progress(), progress))
    if progress.pending_rows is not None:
        said["pending_rows"] = progress.pending_rows
    said["auc_error"] = _rounded(total.auc_error)
    said["stream_bytes"] = progress.stream_bytes
    said["stopped"] = stopped
    return said
