"""Features of a rating, as they were known the moment before it was given.

Each row sees only the ratings before it: what would have been looked up at that time. So a model trained on
the past can be replayed on the future without knowing it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from demo.data import Film, Person, Ratings

Rows = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]

LIKED_OVERALL = 0.55
PRIOR_RATINGS = 5.0
OLDEST_FILM_YEAR = 1920
AGE_STEP_YEARS = 12


class Rates:
    """How often things were liked so far, pulled towards a prior while there are few ratings."""

    def __init__(self) -> None:
        """Start with nothing rated."""
        self.liked: defaultdict[object, float] = defaultdict(float)
        self.rated: defaultdict[object, float] = defaultdict(float)

    def rate(self, key: object, prior: float = LIKED_OVERALL) -> float:
        """Give the share of ratings of the key that liked it."""
        return (self.liked[key] + PRIOR_RATINGS * prior) / (self.rated[key] + PRIOR_RATINGS)

    def add(self, keys: Iterable[object], liked: bool) -> None:
        """Count one rating under several keys."""
        for key in keys:
            self.rated[key] += 1.0
            self.liked[key] += liked


class Neighbours:
    """Says how a person takes to a film from how they took to films that others took to in the same way."""

    def __init__(self, films: Iterable[str]) -> None:
        """Start with no agreement between any two films.

        Args:
            films: All that can be rated.
        """
        self.index = {film: number for number, film in enumerate(films)}
        self.agreement = np.zeros((len(self.index), len(self.index)), np.float32)
        self.together = np.zeros_like(self.agreement)
        self.seen: defaultdict[str, Whole] = defaultdict(lambda: np.empty(0, np.int64))
        self.surprise: defaultdict[str, Rows] = defaultdict(lambda: np.empty(0, np.float32))

    def affinity(self, who: str, what: str) -> float:
        """Give the mean surprise of the person at films like this one, between -1 and 1."""
        film, seen = self.index[what], self.seen[who]
        likeness = self.agreement[film, seen] / (self.together[film, seen] + 2 * PRIOR_RATINGS)
        return float(likeness @ self.surprise[who] / (np.abs(likeness).sum() + 0.5))

    def add(self, who: str, what: str, surprise: float) -> None:
        """Count one rating: how far it was from what the film usually gets."""
        film, seen = self.index[what], self.seen[who]
        products = np.float32(surprise) * self.surprise[who]
        self.agreement[film, seen] += products
        self.agreement[seen, film] += products
        self.together[film, seen] += 1
        self.together[seen, film] += 1
        self.seen[who] = np.append(seen, film)
        self.surprise[who] = np.append(self.surprise[who], np.float32(surprise))


def mean(values: list[float]) -> float:
    """Give the mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


class FeatureMaker:
    """Turns one person and one film into a row of features, and learns the counts as time goes by."""

    def __init__(self, ratings: Ratings) -> None:
        """Fix the columns.

        Args:
            ratings: What to take the genres and occupations from.
        """
        self.genres = sorted({genre for film in ratings.films.values() for genre in film.genres})
        self.occupations = sorted({person.occupation for person in ratings.people.values()})
        self.rates = Rates()
        self.neighbours = Neighbours(ratings.films)

    def learn(self, who: str, person: Person, what: str, film: Film, liked: bool) -> None:
        """Count one rating, after its row was made."""
        self.neighbours.add(who, what, liked - self.rates.rate(("film", what)))
        self.rates.add(self.keys(who, person, what, film), liked)

    def keys(self, who: str, person: Person, what: str, film: Film) -> list[object]:
        """Give everything that one rating counts for."""
        group = (person.gender, person.age // AGE_STEP_YEARS)
        counted: list[object] = [
            ("person", who),
            ("film", what),
            ("gender", person.gender, what),
            ("group", group, what),
        ]
        for genre in film.genres:
            counted += [("taste", who, genre), ("trade", person.occupation, genre), ("genre", genre)]
        return counted

    def row(self, who: str, person: Person, what: str, film: Film) -> list[float]:
        """Give the features of one person and one film, from what was counted so far."""
        rate, rated = self.rates.rate, self.rates.rated
        of_person, of_film = rate(("person", who)), rate(("film", what))
        group = (person.gender, person.age // AGE_STEP_YEARS)
        return [
            of_person,
            of_film,
            self.neighbours.affinity(who, what),
            math.log1p(rated[("person", who)]),
            math.log1p(rated[("film", what)]),
            mean([rate(("taste", who, genre), of_person) for genre in film.genres]) - of_person,
            mean([rate(("trade", person.occupation, genre)) for genre in film.genres]),
            mean([rate(("genre", genre)) for genre in film.genres]),
            rate(("gender", person.gender, what), of_film) - of_film,
            rate(("group", group, what), of_film) - of_film,
            max(0, film.year - OLDEST_FILM_YEAR) / 100.0,
            person.age / 100.0,
            float(person.gender == "F"),
            *(float(genre in film.genres) for genre in self.genres),
            *(float(occupation == person.occupation) for occupation in self.occupations),
        ]


def build(ratings: Ratings) -> Rows:
    """Make the features of all ratings, each from those before it."""
    maker = FeatureMaker(ratings)
    rows = []
    for who, what, liked in ratings.events:
        person, film = ratings.people[who], ratings.films[what]
        rows.append(maker.row(who, person, what, film))
        maker.learn(who, person, what, film, liked)
    return np.array(rows, np.float32)
