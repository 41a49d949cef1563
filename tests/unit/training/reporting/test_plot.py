"""A run is drawn as one image."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, FailedPrecondition
from headrace.evaluation.progressive_validation import Window
from headrace.evaluation.tallies import Score
from headrace.training.releasing.publishing import Publication
from headrace.training.reporting.plot import Plot
from headrace.training.reporting.progress import Pace, Progress


def filled(file: Path) -> Plot:
    plot = Plot(file, "a run")
    for number in range(1, 6):
        score = Score(rows=100, logloss=0.5 / number, auc=None if number == 2 else 0.6, optimal_logloss=0.1)
        window = Window(number=number, last_row=number * 100, score=score, slices={})
        plot.moved(Progress())
        plot.closed(window, Pace(1000.0, 0.0), Progress())
    plot.published(Publication(1, Path("1"), None, 1, 0.0), 300)
    return plot


@pytest.mark.parametrize(
    ("name", "start"), [("run.png", b"\x89PNG"), ("run.svg", b"<?xml"), ("run.pdf", b"%PDF")]
)
def test_the_file_is_an_image_of_the_kind_that_its_name_says(name: str, start: bytes, tmp_path: Path) -> None:
    filled(tmp_path / name).draw()
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_name_that_says_no_kind_is_refused_before_the_run() -> None:
    with pytest.raises(
        ConfigError, match=r"plot: expected a file ending in \.png, \.svg, \.pdf, got 'run.txt'"
    ):
        Plot(Path("run.txt"), "a run")


def test_a_directory_that_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"plot: .* cannot be written: No such file"):
        filled(tmp_path / "missing" / "run.png").draw()
