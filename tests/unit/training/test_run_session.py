"""Runs: what must be the same for a checkpoint to fit; reports share a terminal, and draw the plot."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from numba.core import event

from headrace.evaluation.progressive_validation import Window
from headrace.evaluation.tallies import Score
from headrace.training.options import TrainOptions, settings_of
from headrace.training.reporting.progress import Pace, Progress
from headrace.training.run_session import Reports, announcing_compilation, identity_of, make_plot
from tests.click_blocks import SINGLE


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"linear": {"kind": "adagrad"}}, False),  # checkpoints go on that were saved before there was one
        ({}, True),
        ({"kind": "fm"}, False),
        ({"linear": {"kind": "forgetting"}}, True),
    ],
)
def test_a_half_life_counts_where_something_halves(said: dict[str, object], expected: bool) -> None:
    model = identity_of(TrainOptions(), settings_of(said, "x"), SINGLE)["model"]
    assert isinstance(model, dict)
    assert ("half_life_rows" in model) is expected
    assert "threads" not in model


@pytest.mark.parametrize(
    ("keras", "title"), [(None, "headrace train · lr"), ("m.py", "headrace train · keras")]
)
def test_a_plot_names_the_model_that_was_trained(keras: str | None, title: str) -> None:
    plot = make_plot(TrainOptions(plot=Path("run.png"), keras=keras), settings_of({"kind": "lr"}, "x"))
    assert plot is not None
    assert plot.title == title


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
    with announcing_compilation(errors, reports.clear):
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
