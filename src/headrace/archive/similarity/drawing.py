"""Draws a space in two dimensions: a point a vector, coloured by what it is, and some of them named."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.archive.similarity.layout import Layout
from headrace.archive.similarity.rows import Floats
from headrace.errors import ConfigError, FailedPrecondition

FORMATS = (".png", ".svg", ".pdf")
"""What the name of a picture may end in."""

OTHER = "other"
"""What labels are called that have no colour of their own."""

MOST_COLOURS = 9
"""The most labels that have a colour of their own; more cannot be told apart."""

# Tableau's ten but for its grey, which is for the others: told apart by most of the colour-blind, too.
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
    """What to draw.

    Attributes:
        layout: Where the points are.
        labels: What each point is, ``[M]``; its colour. Those of the most points have one of their own.
        names: What each point is called, ``[M]``.
        named: Which points to name, those that matter most first; a name that has no room is left out.
        title: What to write above.
        subtitle: What to write below that.
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
        ConfigError: matplotlib is not there, or the file's name says no format.
    """
    if file.suffix.lower() not in FORMATS:
        raise ConfigError(f"out: expected a file ending in {', '.join(FORMATS)}, got {file.name!r}")
    try:
        import matplotlib  # noqa: F401, PLC0415 - an extra, and slow to import
    except ImportError:
        raise ConfigError("a plot needs matplotlib: pip install 'headrace[plot]'") from None


def to_name(layout: Layout, labels: Sequence[str], count: int) -> list[int]:
    """Points to name: in turns of each label the one in its middle, then those far from all that are named.

    Args:
        layout: Where the points are.
        labels: What each is.
        count: How many.

    Returns:
        Their places, those that matter most first.
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
        picture: What.
        file: Where to; its name's end says the format.

    Raises:
        ConfigError: matplotlib is not there, or the file's name says no format.
        FailedPrecondition: The file cannot be written.
    """
    check_file(file)
    # Without pyplot there is no state to share, and no window is ever opened.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a key may be of any script
        _draw(picture, file, Figure, FigureCanvasAgg)


def _draw(picture: Picture, file: Path, make_figure: Any, make_canvas: Any) -> None:
    figure: Any = make_figure(figsize=_SIZE_INCHES, dpi=_DOTS, layout="constrained", facecolor="white")
    canvas: Any = make_canvas(figure)
    axis = figure.subplots()
    _draw_points(axis, picture)
    _dress(figure, axis, picture)
    canvas.draw()  # now it is known how large a text is
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
    # Large groups are drawn first, so that small ones are seen.
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
        if texts[0].startswith(f"{OTHER} ("):  # drawn first, told last
            handles, texts = [*handles[1:], handles[0]], [*texts[1:], texts[0]]
        where = {"loc": "outside right upper", "frameon": False, "fontsize": 9, "labelcolor": _TEXT}
        legend = figure.legend(handles, texts, **where)
        for handle in legend.legend_handles:
            handle.set_sizes([36])
            handle.set_alpha(1)


def _draw_names(canvas: Any, axis: Any, picture: Picture) -> None:
    """Write names beside their points, where they cover no other name."""
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
        if box.x1 > frame.x1:  # then to the left of its point
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
    """A text as it is: without what a font has no letters for, and with dollars that begin no formula."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return printable.replace("$", r"\$")
