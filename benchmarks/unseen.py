"""What content says of items that nobody has seen: `python -m benchmarks.unseen`, a few minutes.

Everything goes the way that it goes in production: a stream is written, `headrace train --model mdn` learns
it in one pass and publishes a version, which answers. The rates of pictures are known, so intervals can be
scored; of films there is one view a row, from which only the mean can be learnt.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

from benchmarks.unseen_data import Items, Split, films, pictures, write_stream
from benchmarks.unseen_plot import draw
from benchmarks.unseen_scores import LEVELS, Answers, Scores, scores
from headrace.runtimes.ctr import INTERVAL_SIGNATURE, servable_of
from headrace.servable import TensorSpec
from headrace.tensors import STRING, Array, Tensors
from headrace.terminal import table
from headrace.versions.layout import version_directories

SETTINGS = ("--hidden", "64,32", "--batch-rows", "256")
GENTLY = '[network]\nkind = "adam"\nlearning_rate = 0.0003\n'
"""For vectors of hundreds of numbers: each step moves what all of them say."""

_ROWS_A_CALL = 4096


class Side(NamedTuple):
    """One model, or what stands for one, and how it did.

    Attributes:
        name: What it is called.
        scores: How good it was.
        answers: What it said.
    """

    name: str
    scores: Scores
    answers: Answers


def main() -> None:
    """Print the tables, and draw the plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unseen", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "headrace-films")
    parser.add_argument("--plot", type=Path, default=Path("unseen.png"))
    parser.add_argument("--seeds", type=int, default=3, help="how many times films are split")
    options = parser.parse_args()
    split, sides = of_pictures()
    print_sides("pictures: ads that nobody has seen", sides)
    found = [of_films(options.data, seed) for seed in range(options.seeds)]
    for seed, of_seed in enumerate(found):
        print_sides(f"films that nobody has seen, split {seed}", of_seed)
    named = [[(one.name, one.scores) for one in group] for group in (sides, *found)]
    draw(split.unseen, sides[2].answers, named[0], named[1:], options.plot)
    print(f"drawn: {options.plot}")


def of_pictures() -> tuple[Split, list[Side]]:
    """The generated ads: base rate, categories, pictures too, and pictures of half of the ads only."""
    split = pictures()
    known, unseen = split
    made = [
        _side("base rate", base_rate(known, len(unseen)), unseen),
        _side("categories", learnt(known, unseen, with_content=False), unseen),
        _side("and pictures", learnt(known, unseen, with_content=True), unseen),
    ]
    random = np.random.default_rng(1)
    gone, missing = random.random(len(known)) < 0.5, random.random(len(unseen)) < 0.5
    half = learnt(known.without_content(gone), unseen.without_content(missing), with_content=True)
    for name, which in (("half have one: with", ~missing), ("half have one: without", missing)):
        numbers = np.flatnonzero(which)
        made.append(_side(name, half.chosen(numbers), unseen.chosen(numbers)))
    return split, made


def of_films(folder: Path, seed: int) -> list[Side]:
    """MovieLens: what is known of people, titles too; and the same where genres and years are known."""
    made = []
    for described in (False, True):
        known, unseen = films(folder, seed, described=described)
        name = "people, genres, years" if described else "people"
        for with_content in (False, True):
            answers = learnt(known, unseen, with_content=with_content, config=GENTLY)
            made.append(_side(f"{name}, titles" if with_content else name, answers, unseen))
    return made


def learnt(known: Items, unseen: Items, *, with_content: bool, config: str = "") -> Answers:
    """What a version says of items that was learnt from others.

    Args:
        known: What it is learnt from, in one pass.
        unseen: What it is asked about.
        with_content: Whether it gets the vectors.
        config: Settings, as TOML.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows, settings, model = (Path(folder) / name for name in ("rows.arrows", "settings.toml", "model"))
        write_stream(known, rows, with_content=with_content)
        settings.write_text(config)
        words = [sys.executable, "-m", "headrace", "train", str(rows), "--model", "mdn", *SETTINGS]
        words += ["--config", str(settings), "--publish", str(model), "--json"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        versions = version_directories(model)
        servable = servable_of(versions[max(versions)])
    inputs = {
        spec.name: _input(unseen, spec)
        for spec in servable.signatures[INTERVAL_SIGNATURE].inputs
        if spec.name != "level"
    }
    parts = []
    for start in range(0, len(unseen), _ROWS_A_CALL):
        some = {name: one[start : start + _ROWS_A_CALL] for name, one in inputs.items()}
        parts.append([_asked(servable.predict, some, level) for level in LEVELS])
    joined = [
        {
            name: np.concatenate([part[number][name] for part in parts]).astype(np.float64)
            for name in parts[0][0]
        }
        for number in range(len(LEVELS))
    ]
    return Answers(
        joined[0]["probability"],
        {level: (one["lower"], one["upper"]) for level, one in zip(LEVELS, joined, strict=True)},
    )


def _asked(predict, some: Tensors, level: float) -> Tensors:  # type: ignore[no-untyped-def]
    rows = len(next(iter(some.values())))
    answer: Tensors = predict(some | {"level": np.full(rows, level, np.float32)}, INTERVAL_SIGNATURE)
    return answer


def base_rate(known: Items, count: int) -> Answers:
    """What says the same of every item: the click rate, and the Beta distribution that fits items best."""

    def loss(where: Array) -> float:
        a, b = _beta(where)
        fits = special.betaln(known.clicks + a, known.views - known.clicks + b) - special.betaln(a, b)
        return -float(fits.sum())

    a, b = _beta(optimize.minimize(loss, np.zeros(2), method="Nelder-Mead").x)
    mean = np.full(count, known.clicks.sum() / known.views.sum())
    edges = {level: stats.beta.ppf([0.5 - level / 2, 0.5 + level / 2], a, b) for level in LEVELS}
    return Answers(
        mean, {level: (np.full(count, low), np.full(count, high)) for level, (low, high) in edges.items()}
    )


def _beta(where: Array) -> tuple[float, float]:
    mean, size = float(special.expit(where[0])), float(np.exp(where[1]))
    return mean * size, (1 - mean) * size


def _input(items: Items, spec: TensorSpec) -> Array:
    if spec.name == items.content:
        return items.vectors
    column = items.columns[spec.name]
    if spec.dtype != STRING:
        found: Array = column.to_numpy().astype(np.int64)
        return found
    made = np.full((len(items), *spec.shape), b"", object)
    for row, value in enumerate(column.to_pylist()):
        if spec.shape:
            made[row, : len(value)] = [one.encode() for one in value]
        else:
            made[row] = value.encode()
    return made


def _side(name: str, answers: Answers, items: Items) -> Side:
    return Side(name, scores(answers, items), answers)


def print_sides(title: str, sides: list[Side]) -> None:
    """Print a table, a line a side."""
    rated = any(one.scores.coverage for one in sides)
    heads = [f"{what} {level:.0%}" for level in LEVELS for what in ("covers", "score")] if rated else []
    lines = [(title, "logloss", "AUC", *heads)]
    for one in sides:
        numbers = [one.scores.logloss, one.scores.auc]
        for level in LEVELS if rated else ():
            numbers += [one.scores.coverage[level], one.scores.interval_score[level]]
        lines.append((one.name, *(f"{number:.4f}" for number in numbers)))
    print(f"\n{table(lines, range(1, len(lines[0])))}", flush=True)


if __name__ == "__main__":
    main()
