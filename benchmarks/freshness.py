"""Served predictions on clicks that drift: what is it worth to publish more often?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.rounds import Effort, print_lines
from headrace.ctr import factory
from headrace.ctr.click_model import Scorer
from headrace.ctr.model_settings import ModelSettings
from headrace.evaluation.tallies import exact_areas
from headrace.stream.block import Block, Features
from headrace.stream.block_joining import Joiner
from headrace.stream.click_generator import GeneratorSettings, generate_batches, schema_of

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "freshness.png"
ROWS_AN_HOUR = 20_000
HOURS = 60
WARM_HOURS = 10
"""How long all of them learn before anything is compared; what is frozen, is frozen then."""

WINDOW_HOURS = 2
BATCH_ROWS = 1000
DRIFT = 0.25
INTERVALS = {"6 minutes": 0.1, "30 minutes": 0.5, "1 hour": 1.0, "5 hours": 5.0, "a day": 24.0}
FROZEN, OPTIMAL = "never", "the best possible"
SETTINGS = ModelSettings(kind="deepfm", hidden=(64, 32), batch_rows=BATCH_ROWS)

Array = npt.NDArray[np.float32]


class Served(NamedTuple):
    """What was predicted for all rows, and what they were.

    Attributes:
        predictions: By how often versions are published.
        labels: 0 or 1.
    """

    predictions: Mapping[str, Array]
    labels: Array


class Releases:
    """The version that serves, if one is published each so many rows."""

    def __init__(self, every_rows: float) -> None:
        """Start with none."""
        self._every_rows = every_rows
        self.scorer: Scorer | None = None

    def due(self, row: int) -> bool:
        """Whether a version is published after this many rows: in any case when all have warmed up."""
        if row < WARM_HOURS * ROWS_AN_HOUR:
            return False
        return self.scorer is None or row % self._every_rows == 0


def blocks(rows: int) -> Iterator[Block]:
    """The rows, as a trainer has them."""
    settings = GeneratorSettings(
        rows=rows, seed=1, drift=DRIFT, rows_per_second=ROWS_AN_HOUR / 3600, batch_rows=BATCH_ROWS
    )
    joiner = Joiner(Features.of(schema_of(settings)))
    for number, batch in enumerate(generate_batches(settings)):
        yield joiner.join(batch, number * BATCH_ROWS)


def serve(rows: int) -> Served:
    """Let one model learn, and versions of it predict each row before it is learnt."""
    features = Features.of(schema_of(GeneratorSettings(drift=DRIFT)))
    model = factory.create(SETTINGS, features)
    releases = {name: Releases(hours * ROWS_AN_HOUR) for name, hours in INTERVALS.items()}
    releases[FROZEN] = Releases(np.inf)
    found: dict[str, list[Array]] = {name: [] for name in (*releases, OPTIMAL)}
    labels = []
    for block in blocks(rows):
        due = [one for one in releases.values() if one.due(block.first_row)]
        if due:
            scorer = factory.scorer(SETTINGS, features, model.strip())
            for one in due:
                one.scorer = scorer
        if releases[FROZEN].scorer is not None:
            known: dict[int, Array] = {}
            for name, one in releases.items():
                if one.scorer is not None and id(one.scorer) not in known:
                    known[id(one.scorer)] = one.scorer.predict(block.indices, block.dense)
                found[name].append(known[id(one.scorer)])
            found[OPTIMAL].append(block.truth if block.truth is not None else block.labels)
            labels.append(block.labels)
        model.learn(block)
    return Served({name: np.concatenate(parts) for name, parts in found.items()}, np.concatenate(labels))


def areas(served: Served, name: str, windows: int = 1) -> npt.NDArray[np.float64]:
    """The AUC in windows of equal length."""
    groups = np.arange(len(served.labels)) * windows // len(served.labels)
    return exact_areas(served.predictions[name], served.labels, None, groups, windows)


def draw(served: Served, file: Path) -> None:
    """Draw the AUC over time: the best possible, fresh versions, and one that is left alone."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    windows = (HOURS - WARM_HOURS) // WINDOW_HOURS
    hours = WARM_HOURS + WINDOW_HOURS * (np.arange(windows) + 0.5)
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=120, layout="constrained")
    shown = {
        OPTIMAL: ("#8a8f98", "best possible"),
        "30 minutes": ("#1f5fa8", "published every 30 minutes"),
        "5 hours": ("#2a9d8f", "every 5 hours"),
        "a day": ("#7b5ea7", "once a day"),
        FROZEN: ("#d9822b", "the first version, left alone"),
    }
    for name, (colour, label) in shown.items():
        values = areas(served, name, windows)
        axes.plot(hours, values, color=colour, linewidth=1.8, label=label)
    axes.set_xlabel("hours of the stream")
    axes.set_ylabel(f"AUC of what was served, {WINDOW_HOURS} hours each")
    axes.set_xlim(WARM_HOURS, HOURS)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file)
    plt.close(figure)


def run(effort: Effort) -> None:
    """Print AUC by how often versions are published, and draw the documentation's picture."""
    served = serve(HOURS * ROWS_AN_HOUR)
    found = {name: float(areas(served, name)[0]) for name in served.predictions}
    lines = [("published", "AUC", "of what 6 minutes gain over never")]
    gain = found["6 minutes"] - found[FROZEN]
    for name, area in found.items():
        share = "" if name == OPTIMAL else f"{(area - found[FROZEN]) / gain:.0%}"
        lines.append((name, f"{area:.4f}", share))
    print_lines(lines)
    draw(served, IMAGE)
    print(IMAGE)
