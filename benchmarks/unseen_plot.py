"""The plot of what content says of items that nobody has seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from demo.unseen_data import Items
from demo.unseen_plot import BLUE, ORANGE, Named
from demo.unseen_scores import LEVELS, Answers

GREY = "#8a8f98"
SHOWN = 60


def draw(items: Items, answers: Answers, ads: Named, splits: list[Named], file: Path) -> None:
    """Draw intervals beside true rates, interval scores, and films' AUCs.

    Args:
        items: The unseen ads.
        answers: What the model with pictures said of them.
        ads: The scores of all that answered about ads.
        splits: The same of films, for each split.
        file: Where to.
    """
    figure = Figure((13, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    _intervals(left, items, answers)
    _scores(middle, ads)
    _areas(right, splits)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def _intervals(axes: Axes, items: Items, answers: Answers) -> None:
    chosen = np.random.default_rng(0).choice(len(items), SHOWN, replace=False)
    chosen = chosen[np.argsort(answers.mean[chosen])]
    low, high = (edge[chosen] for edge in answers.intervals[LEVELS[0]])
    rates = np.zeros(len(items)) if items.rates is None else items.rates
    places = np.arange(SHOWN)
    axes.vlines(places, low, high, color=BLUE, alpha=0.35, linewidth=4, label=f"interval, {LEVELS[0]:.0%}")
    axes.plot(places, answers.mean[chosen], ".", color=BLUE, label="mean")
    axes.plot(places, rates[chosen], "x", color=ORANGE, markersize=5, label="true rate")
    axes.set(title="Ads that nobody has seen, by their pictures", ylabel="click rate", xticks=[])
    axes.set_xlabel(f"{SHOWN} of {len(items):,} ads, by their mean")
    axes.legend(frameon=False, loc="upper left")


def _scores(axes: Axes, ads: Named) -> None:
    names = [name for name, _ in ads]
    places = np.arange(len(names))[::-1]
    for number, (level, color) in enumerate(zip(LEVELS, (BLUE, GREY), strict=True)):
        heights = [one.interval_score[level] for _, one in ads]
        bars = axes.barh(places + 0.2 - 0.4 * number, heights, 0.36, color=color, label=f"{level:.0%}")
        covered = [f" covers {one.coverage[level]:.1%}" for _, one in ads]
        axes.bar_label(bars, covered, fontsize=8)
    axes.set(title="Interval score: lower is better", yticks=places, yticklabels=names)
    axes.set_xlim(0, 1.9 * max(one.interval_score[LEVELS[-1]] for _, one in ads))
    axes.legend(frameon=False, loc="center right", title="interval of")


def _areas(axes: Axes, splits: list[Named]) -> None:
    names = [name for name, _ in splits[0]]
    places = np.arange(len(names))[::-1]
    for split in splits:
        areas = [one.auc for _, one in split]
        for start in range(0, len(names), 2):
            axes.plot(areas[start : start + 2], places[start : start + 2], "-", color=GREY, linewidth=0.8)
        axes.plot(areas, places, "o", color=BLUE)
    axes.set(title="Films that nobody has seen", xlabel="AUC, a dot a split", yticks=places)
    axes.set_yticklabels(names)
    axes.margins(y=0.15)
