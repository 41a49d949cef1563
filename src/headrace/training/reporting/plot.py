"""Plot of a run: its scores and pace over its rows, with marks where versions were published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.base.errors import ConfigError, FailedPrecondition, needs_extra
from headrace.evaluation.progressive_validation import Window
from headrace.evaluation.tallies import Score
from headrace.training.releasing.publishing import Publication
from headrace.training.reporting.progress import Pace, Progress

_BLUE, _ORANGE, _GREY = "#1f5fa8", "#d9822b", "#8a8f98"
_MOST_POINTS = 2000
_FORMATS = (".png", ".svg", ".pdf")


class Point(NamedTuple):
    """A window of the run.

    Attributes:
        row: Number of rows scored at its end.
        score: Score of its rows.
        rows_per_second: Rows taken from the stream per second.
    """

    row: int
    score: Score
    rows_per_second: float


class Plot:
    """Collector of a run's windows and versions, drawn at its end.

    Attributes:
        title: Title of the plot.
        points: The windows.
        publications: Rows at which versions were published.
    """

    def __init__(self, file: Path, title: str) -> None:
        """Check that a plot can be drawn.

        Args:
            file: The image to write; its suffix selects the format: png, svg or pdf.
            title: Title of the plot.

        Raises:
            ConfigError: matplotlib is not installed, or the file's suffix is not supported.
        """
        if file.suffix.lower() not in _FORMATS:
            raise ConfigError(f"plot: expected a file ending in {', '.join(_FORMATS)}, got {file.name!r}")
        try:
            import matplotlib  # noqa: F401, PLC0415 - an extra, and slow to import
        except ImportError as error:
            raise needs_extra("plot", "plot", error) from error
        self._file = file
        self.title = title
        self.points: list[Point] = []
        self.publications: list[int] = []

    def moved(self, progress: Progress) -> None:
        """Do nothing: windows are drawn."""

    def closed(self, window: Window, pace: Pace, progress: Progress) -> None:
        """Add the window."""
        self.points.append(Point(window.last_row, window.score, pace.rows_per_second))

    def published(self, publication: Publication, rows: int) -> None:
        """Add a mark for the version."""
        self.publications.append(rows)

    def failed(self, what: str) -> None:
        """Do nothing."""

    def draw(self) -> None:
        """Write the image.

        Raises:
            FailedPrecondition: The file cannot be written.
        """
        # pyplot would keep global state, and might open a window.
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

        figure = Figure(figsize=(9, 8.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(4, 1, sharex=True, height_ratios=(3, 2, 2, 2))
        points = self.points[:: 1 + len(self.points) // _MOST_POINTS]
        _draw_scores(axes, points)
        for axis in axes:
            _dress(axis)
            for row in self.publications:
                axis.axvline(row, color=_ORANGE, linewidth=0.8, alpha=0.45, zorder=0)
        if self.publications:
            axes[0].plot([], [], color=_ORANGE, linewidth=0.8, label="version published")
        axes[0].legend(frameon=False, fontsize=9, ncols=3, loc="upper right")
        axes[-1].set_xlabel("rows")
        axes[-1].xaxis.set_major_formatter(_thousands)
        figure.suptitle(self.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        try:
            figure.savefig(self._file, dpi=150)
        except OSError as error:
            raise FailedPrecondition(f"plot: {self._file} cannot be written: {error.strerror}") from error


def _draw_scores(axes: Any, points: Sequence[Point]) -> None:
    style = {"color": _BLUE, "linewidth": 1.4, "marker": "o" if len(points) < 40 else "", "markersize": 3}
    rows = [point.row for point in points]
    optimal = [(point.row, point.score.optimal_logloss) for point in points]
    axes[0].plot(rows, [_or_nan(point.score.logloss) for point in points], **style, label="model")
    if any(value is not None for _, value in optimal):
        drawn = {"color": _GREY, "linewidth": 1.2, "linestyle": "--", "label": "best possible"}
        axes[0].plot(rows, [_or_nan(value) for _, value in optimal], **drawn)
    axes[0].set_ylabel("logloss")
    axes[1].plot(rows, [_or_nan(point.score.auc) for point in points], **style)
    axes[1].set_ylabel("AUC")
    axes[2].axhline(1.0, color=_GREY, linewidth=1.0, linestyle="--")
    axes[2].plot(rows, [_or_nan(point.score.calibration) for point in points], **style)
    axes[2].set_ylabel("calibration")
    axes[3].plot(rows, [point.rows_per_second for point in points], **style)
    axes[3].set_ylabel("rows/s")
    axes[3].set_ylim(bottom=0)
    axes[3].yaxis.set_major_formatter(_thousands)


def _dress(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=9)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _thousands(value: float, _: object) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
