"""What content says of items that nobody has seen: `python -m benchmarks.unseen`, a few minutes.

Everything goes the way that it goes in production: a stream is written, `headrace train --model mdn` learns
it in one pass and publishes a version, which answers. The rates of pictures are known, so intervals can be
scored; of films there is one view a row, from which only the mean can be learnt.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.unseen_pictures import pictures
from benchmarks.unseen_plot import draw
from demo.unseen_data import Items, Split, films
from demo.unseen_learning import GENTLY, base_rate, learnt
from demo.unseen_scores import LEVELS, Answers, Scores, scores
from headrace.base.terminal import table


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
