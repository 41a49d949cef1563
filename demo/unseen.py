"""What titles say of films that nobody has seen: the multi-modal model beside the categorical one.

A quarter of MovieLens' films is kept from learning. `headrace train --model mdn` learns from the ratings of
the others, once with what is known of people (and of films: genres, years) alone, and once with the titles'
vectors, too, as the archive answers them. Half of the titles are then left out, as if they were not embedded.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from demo.unseen_data import films
from demo.unseen_learning import GENTLY, base_rate, learnt
from demo.unseen_plot import draw_films
from demo.unseen_scores import Scores, scores
from headrace.base.tensors import Array
from headrace.base.terminal import table

DESCRIBED = {"people": False, "people, genres, years": True}
"""What is known beside titles, and whether that says anything of films."""

VectorsOf = Callable[[list[str]], Array]


class Unseen:
    """The models, and how they do; two at a time are learnt beside whatever else goes on."""

    def __init__(self, folder: Path, vectors_of: VectorsOf) -> None:
        """Begin.

        Args:
            folder: Where the ratings are.
            vectors_of: Gives the vectors of titles: float32 ``[titles, size]``; zeros are missing ones.
        """
        self._folder = folder
        self._threads = ThreadPoolExecutor(2)
        self._sides: dict[str, Future[Scores]] = {}

        def half(titles: list[str]) -> Array:
            vectors = vectors_of(titles)
            gone = np.random.default_rng(1).random(len(titles)) < 0.5
            return np.where(gone[:, None], np.float32(0), vectors)

        for name, described in DESCRIBED.items():
            for said, find in (("", None), (", half of the titles", half), (", titles", vectors_of)):
                self._sides[name + said] = self._threads.submit(_scored, folder, described, find)

    def show(self, picture: Path) -> None:
        """Wait for all, print the table, and draw the picture.

        Args:
            picture: Where to.

        Raises:
            SystemExit: Titles did not help.
        """
        known, unseen = films(self._folder, vectors_of=_none)
        found = {"base rate": scores(base_rate(known, len(unseen)), unseen)}
        found |= {name: side.result() for name, side in self._sides.items()}
        lines = [("films that nobody has seen", "logloss", "AUC")]
        lines += [(name, f"{one.logloss:.4f}", f"{one.auc:.4f}") for name, one in found.items()]
        print(table(lines, right=(1, 2)), flush=True)
        draw_films(list(found.items()), picture)
        if found["people, titles"].auc <= found["people"].auc:
            raise SystemExit("titles did not help with films that nobody has seen")

    def close(self) -> None:
        """Wait for what is being learnt; nothing else is begun."""
        self._threads.shutdown(cancel_futures=True)


def _none(titles: list[str]) -> Array:
    return np.zeros((len(titles), 1), np.float32)


def _scored(folder: Path, described: bool, vectors_of: VectorsOf | None) -> Scores:
    known, unseen = films(folder, described=described, vectors_of=vectors_of or _none)
    return scores(learnt(known, unseen, with_content=vectors_of is not None, config=GENTLY), unseen)
