"""The plot: how good the newest version and the frozen one were, over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from demo.replay import Record
from demo.report import scores

WINDOW_ROWS = 5000
NEWEST, FROZEN, GREY = "#1f5fa8", "#d9822b", "#8a8f98"


def draw(record: Record, file: Path) -> Path:
    """Draw both AUCs by windows of rows, with a mark where each version began to answer."""
    figure = Figure((9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rows = np.arange(len(record.liked))
    asked = np.flatnonzero(record.version)
    ends, newest, frozen = [], [], []
    for first in range(int(asked[0]), int(asked[-1]) + 1, WINDOW_ROWS):
        one = scores(record, (rows >= first) & (rows < first + WINDOW_ROWS))
        ends.append(first + one.rows)
        newest.append(one.auc)
        frozen.append(one.frozen_auc)
    for number in record.versions:
        axes.axvline(float(np.argmax(record.version == number)), color=GREY, linewidth=0.5)
    axes.plot(ends, newest, "o-", color=NEWEST, label="the newest version")
    axes.plot(ends, frozen, "o-", color=FROZEN, label="version 1")
    axes.set(title="Films, asked about before they were learnt from", xlabel="ratings", ylabel="AUC")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    return file
