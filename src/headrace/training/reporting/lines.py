"""What a run says while it learns: a line for people on a terminal, one JSON object a window for machines."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from headrace.terminal import Line
from headrace.training.releasing.publishing import Publication
from headrace.training.reporting.progress import Pace, Progress
from headrace.training.scoring.tallies import Score
from headrace.training.scoring.trends import Trend
from headrace.training.scoring.windows import Window

_DIGITS = 9

_TRENDS: dict[Trend, str] = {
    "jumped": "predictions are far worse than in the windows before: the world has jumped, or the input has "
    "changed",
    "tired": "predictions have been worse for some windows than they were once: what happens is harder to "
    "predict now, or the model does not keep up; try other settings with --search",
}


def described(score: Score) -> dict[str, float | int | None]:
    """A score as JSON can hold it, with rounded numbers; what was not measured is left out."""
    said: dict[str, float | int | None] = {"rows": score.rows, "logloss": _rounded(score.logloss)}
    for name in ("auc", "calibration", "normalized_entropy", "click_rate"):
        said[name] = _rounded(getattr(score, name))
    if score.optimal_logloss is not None:
        said["optimal_logloss"] = _rounded(score.optimal_logloss)
    return said


class JsonReport:
    """One JSON object a window, each on a line of its own.

    Attributes:
        problem: Why a line could not be written; None if all could.
    """

    def __init__(self, output: TextIO) -> None:
        """Write to a stream of text."""
        self._output = output
        self._said_versions = 0
        self.problem: str | None = None

    def moved(self, progress: Progress) -> None:
        """Say nothing: a window will."""

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Write the window."""
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
        """Say nothing: the next window's line lists it."""

    def failed(self, what: str) -> None:
        """Say nothing: it is said on standard error."""

    def write(self, line: Mapping[str, object]) -> None:
        """Write one object."""
        try:
            self._output.write(json.dumps(line, allow_nan=False) + "\n")
            self._output.flush()
        except BrokenPipeError:
            # Nobody reads on, which is no reason to stop learning: lines go nowhere from now on.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._output.fileno())
        except OSError as error:
            # A full disk, say, is no reason to stop learning either; the next line may find room.
            self.problem = f"standard output cannot be written: {error.strerror or error}"


class TerminalReport:
    """One line that is written over and over, for people."""

    def __init__(self, output: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        """Write to a terminal.

        Args:
            output: The terminal.
            now: What tells the time, in seconds.
        """
        self._line = Line(output, now, shown=True)
        self._before = Progress()
        self._window = ""

    def moved(self, progress: Progress) -> None:
        """Renew the line, a few times a second."""
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
        """Show its scores from now on."""
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
        """Nothing: the line shows the newest version."""

    def failed(self, what: str) -> None:
        """Nothing but make room: it is said on standard error."""
        self.clear()

    def clear(self) -> None:
        """Wipe the line away."""
        self._line.clear()


class Warnings:
    """Says on standard error what went wrong but does not end the run."""

    def __init__(self, output: TextIO) -> None:
        """Write to a stream of text."""
        self._output = output
        self._trend: Trend | None = None

    def moved(self, progress: Progress) -> None:
        """Nothing."""

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Say what recent windows say, when it is news."""
        if window.trend is not None and window.trend != self._trend:
            self.failed(f"window {window.number}, row {window.last_row:,}: {_TRENDS[window.trend]}")
        self._trend = window.trend

    def published(self, publication: Publication, rows: int) -> None:
        """Nothing."""

    def failed(self, what: str) -> None:
        """Say it."""
        # What is said of a full disk may itself go to a file there: then nobody can be told.
        with contextlib.suppress(OSError):
            self._output.write(f"headrace: {what}\n")
            self._output.flush()


def _paced(pace: Pace) -> dict[str, float]:
    return {"rows_per_second": round(pace.rows_per_second, 1), "idle_share": round(pace.idle_share, 4)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def summary(total: Score, progress: Progress, stopped: str) -> dict[str, object]:
    """The last line of a run.

    Args:
        total: The score of all rows.
        progress: How far the run came.
        stopped: Why it ended: ``end``, ``rows``, ``error``, ``interrupt`` or ``terminate``.
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
