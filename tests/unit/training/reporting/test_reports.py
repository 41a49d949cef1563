"""Reports share a terminal without overwriting each other, and draw the plot however the run ended."""

from __future__ import annotations

import io

import msgspec
from numba.core import event

from headrace.evaluation.tallies import Score
from headrace.evaluation.windows import Window
from headrace.training.reporting.progress import Pace, Progress
from headrace.training.reporting.reports import Reports, told_of_compiling

PROGRESS = Progress(rows=300, seconds=2.0)
WINDOW = Window(number=3, last_row=300, score=Score(rows=100), slices={})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """The lines as they are left on the screen."""
        shown = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for text in line.split("\r"):
                cells[: len(text)] = text
            shown.append("".join(cells).rstrip())
        return shown


class FakePlot:
    """A plot that remembers whether it was drawn."""

    points = (WINDOW,)
    is_drawn = False

    def draw(self) -> None:
        self.is_drawn = True


def test_a_trend_is_written_on_a_line_of_its_own() -> None:
    errors = Terminal()
    for observer in Reports(io.StringIO(), errors, None).observers:
        observer.moved(PROGRESS)
        observer.closed(msgspec.structs.replace(WINDOW, trend="jumped"), Pace(1000.0, 0.25), PROGRESS)
    assert errors.lines()[0].startswith("headrace: window 3, row 300: predictions are far worse")


def test_compiling_is_announced_on_a_line_of_its_own() -> None:
    errors = Terminal()
    reports = Reports(io.StringIO(), errors, None)
    with told_of_compiling(errors, reports.clear):
        reports.observers[0].moved(PROGRESS)
        for _ in range(2):
            with event.trigger_event("numba:compile"):
                pass
    assert errors.lines() == [
        "headrace: compiling kernels, which may take a minute; later runs reuse them",
        "",
    ]


def test_a_run_that_failed_is_drawn() -> None:
    plot, errors = FakePlot(), io.StringIO()
    said = Reports(io.StringIO(), errors, plot).end({"rows": 300}, "the stream is cut")  # type: ignore[arg-type]
    assert plot.is_drawn
    assert (said, errors.getvalue()) == ("the stream is cut", "headrace: the stream is cut\n")
