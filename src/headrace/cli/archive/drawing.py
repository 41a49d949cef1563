"""Draws a space in two dimensions: one point per vector, coloured by label, some with names."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import ConfigError, FailedPrecondition, needs_extra
from headrace.similarity.layout import Layout
from headrace.similarity.stored_rows import Floats

FORMATS = (".png", ".svg", ".pdf")
"""Supported endings of a picture's file name."""

OTHER = "other"
"""Name in the legend for labels without a colour of their own."""

MOST_COLOURS = 9
"""Maximum number of labels with a colour of their own; more could not be distinguished."""

# Tableau 10, which most colour-blind people can distinguish, without its grey, which is for other labels.
_COLOURS = (
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f",
)  # fmt: skip
_GREY = "#c3c7cd"
_TEXT = "#2b2f36"
_LONGEST_NAME = 34
_SIZE_INCHES = (10.0, 7.5)
_DOTS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture to draw.

    Attributes:
        layout: Positions of the points.
        labels: Label of each point, ``[M]``, which sets its colour. The most frequent labels have their own.
        names: Name of each point, ``[M]``.
        named: Indices of the points to name, the most important first; names without room are left out.
        title: Title.
        subtitle: Text below the title.
    """

    layout: Layout
    labels: Sequence[str]
    names: Sequence[str]
    named: Sequence[int]
    title: str
    subtitle: str = ""


def check_file(file: Path) -> None:
    """Check that a picture can be written, before it is made.

    Raises:
        ConfigError: matplotlib is not installed, or the file name has no supported ending.
    """
    if file.suffix.lower() not in FORMATS:
        raise ConfigError(f"out: expected a file ending in {', '.join(FORMATS)}, got {file.name!r}")
    try:
        import matplotlib  # noqa: F401, PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise needs_extra("a plot", "plot", error) from error


def to_name(layout: Layout, labels: Sequence[str], count: int) -> list[int]:
    """Choose points to name: the central one of each frequent label, then points far from all chosen ones.

    Args:
        layout: Positions of the points.
        labels: Label of each point.
        count: Number of points to choose.

    Returns:
        Indices of the points, the most important first.
    """
    points = layout.points
    chosen: list[int] = []
    groups = np.asarray(labels, object)
    for label, _ in Counter(labels).most_common(min(count, MOST_COLOURS)):
        places = np.flatnonzero(groups == label)
        middle = np.median(points[places], axis=0)
        chosen.append(int(places[np.argmin(((points[places] - middle) ** 2).sum(axis=1))]))
    if not chosen:
        return []
    distances = np.min([((points - points[place]) ** 2).sum(axis=1) for place in chosen], axis=0)
    while len(chosen) < min(count, len(points)):
        chosen.append(int(np.argmax(distances)))
        distances = np.minimum(distances, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
    return chosen


def draw(picture: Picture, file: Path) -> None:
    """Draw a space.

    Args:
        picture: Picture to draw.
        file: File to write; its ending sets the format.

    Raises:
        ConfigError: matplotlib is not installed, or the file name has no supported ending.
        FailedPrecondition: The file cannot be written.
    """
    check_file(file)
    # Without pyplot there is no shared state, and no window is opened.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # keys may be in any script
        _draw(picture, file, Figure, FigureCanvasAgg)


def _draw(picture: Picture, file: Path, make_figure: Any, make_canvas: Any) -> None:
    figure: Any = make_figure(figsize=_SIZE_INCHES, dpi=_DOTS, layout="constrained", facecolor="white")
    canvas: Any = make_canvas(figure)
    axis = figure.subplots()
    _draw_points(axis, picture)
    _dress(figure, axis, picture)
    canvas.draw()  # text sizes are known only after drawing
    _draw_names(canvas, axis, picture)
    try:
        figure.savefig(file, dpi=_DOTS)
    except OSError as error:
        raise FailedPrecondition(f"out: {file} cannot be written: {error.strerror}") from error


def _draw_points(axis: Any, picture: Picture) -> None:
    points, groups = picture.layout.points, np.asarray(picture.labels, object)
    counted = Counter(picture.labels)
    coloured = [label for label, _ in counted.most_common(MOST_COLOURS)]
    size = float(np.clip(30_000 / len(points), 3, 26))
    rest = np.flatnonzero(~np.isin(groups, np.asarray(coloured, object)))
    style = {"s": size, "linewidths": 0, "rasterized": True}
    if len(rest):
        _scatter(
            axis, points[rest], {**style, "color": _GREY, "alpha": 0.5, "label": f"{OTHER} ({len(rest)})"}
        )
    # Draw large groups first, so that small ones stay visible.
    for label, colour in zip(coloured, _COLOURS, strict=False):
        places = np.flatnonzero(groups == label)
        shown = f"{_short(label)} ({len(places)})"
        _scatter(axis, points[places], {**style, "color": colour, "alpha": 0.72, "label": shown})


def _scatter(axis: Any, points: Floats, style: dict[str, Any]) -> None:
    axis.scatter(points[:, 0], points[:, 1], **style)


def _dress(figure: Any, axis: Any, picture: Picture) -> None:
    axis.spines[:].set_visible(False)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.margins(0.06)
    explained = picture.layout.explained
    if explained is not None:
        axis.set_xlabel(f"first axis, {explained[0]:.1%} of the variance", fontsize=8, color="#7a808a")
        axis.set_ylabel(f"second axis, {explained[1]:.1%} of the variance", fontsize=8, color="#7a808a")
    axis.set_title(_plain(picture.title), loc="left", pad=20, fontsize=14, fontweight="bold", color=_TEXT)
    below = {"xytext": (0, 6), "textcoords": "offset points", "fontsize": 9, "color": "#5b616b"}
    axis.annotate(_plain(picture.subtitle), (0, 1), xycoords="axes fraction", **below)
    if len(set(picture.labels)) > 1:
        handles, texts = axis.get_legend_handles_labels()
        if texts[0].startswith(f"{OTHER} ("):  # drawn first, listed last
            handles, texts = [*handles[1:], handles[0]], [*texts[1:], texts[0]]
        where = {"loc": "outside right upper", "frameon": False, "fontsize": 9, "labelcolor": _TEXT}
        legend = figure.legend(handles, texts, **where)
        for handle in legend.legend_handles:
            handle.set_sizes([36])
            handle.set_alpha(1)


def _draw_names(canvas: Any, axis: Any, picture: Picture) -> None:
    """Write names beside their points where they cover no other name."""
    from matplotlib.patheffects import withStroke  # noqa: PLC0415 - an extra

    taken: list[Any] = []
    frame = axis.get_window_extent()
    for place in picture.named:
        x, y = picture.layout.points[place]
        written = axis.annotate(
            _short(picture.names[place]),
            (x, y),
            (5, 3),
            textcoords="offset points",
            fontsize=7.5,
            color=_TEXT,
        )
        written.set_path_effects([withStroke(linewidth=3, foreground="white", alpha=0.95)])
        box = written.get_window_extent(canvas.get_renderer())
        if box.x1 > frame.x1:  # no room on the right
            written.set_ha("right")
            written.set_position((-5, 3))
            box = written.get_window_extent(canvas.get_renderer())
        outside = box.x0 < frame.x0 or box.y1 > frame.y1
        if outside or any(box.padded(3).overlaps(other) for other in taken):
            written.remove()
            continue
        taken.append(box)
        axis.scatter([x], [y], s=16, facecolors="none", edgecolors=_TEXT, linewidths=0.8)


def _short(text: str) -> str:
    cut = text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1].rstrip() + "…"
    return _plain(cut)


def _plain(text: str) -> str:
    """Replace unprintable characters with spaces, and escape dollar signs, which start a formula."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return printable.replace("$", r"\$")
