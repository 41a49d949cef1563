"""The picture of what titles say of films that nobody has seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from demo.unseen_scores import Scores

BLUE, ORANGE = "#1f5fa8", "#d9822b"

Named = list[tuple[str, Scores]]


def draw_films(sides: Named, file: Path) -> None:
    """Draw the AUC and the logloss of films that nobody has seen, a line a side.

    Args:
        sides: The scores by name; those whose name says that there are titles have another color.
        file: Where to.
    """
    figure = Figure((11, 0.5 * len(sides) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(sides))[::-1]
    colors = [ORANGE if "titles" in name else BLUE for name, _ in sides]
    for axes, title, values in (
        (left, "AUC: higher is better", [one.auc for _, one in sides]),
        (right, "Logloss: lower is better", [one.logloss for _, one in sides]),
    ):
        axes.scatter(values, places, color=colors)
        for value, place in zip(values, places, strict=True):
            axes.annotate(f"{value:.4f}", (value, place), (0, 6), textcoords="offset points", ha="center")
        axes.set(title=title, yticks=places, yticklabels=[name for name, _ in sides])
        axes.margins(x=0.15, y=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=110)
