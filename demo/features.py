"""What a request is made of: a page of films for one person, with what was known the moment before.

A page is asked about before any of its ratings counts for anything: so what is learnt from the past can be
tried on the future without knowing it. How much a film is liked in general is no feature: that, and who
likes which films, is for the model to learn, and changes from day to day.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from demo.data import Film, Person, Rating, Ratings
from headrace.stream.schema import Field, Schema

Numbers = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]
Value = int | str | float | list[str]

MOST_GENRES = 6
SCHEMA = Schema(
    fields=(
        Field(name="liked", role="label"),
        Field(name="age", role="categorical", buckets=64, context=True),
        Field(name="gender", role="categorical", text=True, buckets=16, context=True),
        Field(name="occupation", role="categorical", text=True, buckets=256, context=True),
        Field(name="mood", role="dense", context=True),
        Field(name="experience", role="dense", context=True),
        Field(name="film", role="categorical", buckets=2**14),
        Field(name="year", role="categorical", buckets=1024),
        Field(name="genres", role="categorical", text=True, buckets=256, values=MOST_GENRES),
        Field(name="taste", role="dense"),
        Field(name="affinity", role="dense"),
    )
)
"""What a row of the stream, and so of a request, consists of; the context is the person."""

PAGE_SECONDS = 120
PAGE_FILMS = 32
LIKED_OVERALL = 0.55
PRIOR_RATINGS = 5.0
AGE_STEP_YEARS = 6


class Page(NamedTuple):
    """Films that one person is asked about at once: one row of context, one row a film.

    Attributes:
        first_row: The number of the first film's rating among all ratings.
        context: The person's features, by name.
        candidates: The films' features, by name.
        liked: What the person said about each film, afterwards.
    """

    first_row: int
    context: dict[str, Value]
    candidates: dict[str, list[Value]]
    liked: list[bool]

    def first(self) -> Page:
        """The page with its first film only."""
        candidates = {name: values[:1] for name, values in self.candidates.items()}
        return Page(self.first_row, self.context, candidates, self.liked[:1])


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
        self.surprise: defaultdict[str, Numbers] = defaultdict(lambda: np.empty(0, np.float32))

    def affinity(self, who: str, what: Sequence[str]) -> Numbers:
        """Give the mean surprise of the person at films like each of these, between -1 and 1."""
        films, seen = self.numbers(what), self.seen[who]
        likeness = self.agreement[films[:, None], seen] / (self.together[films[:, None], seen] + 10)
        # Not @: OpenBLAS reads beyond short vectors, harmlessly, but NumPy warns of what lies there.
        total = np.einsum("fs,s->f", likeness, self.surprise[who])
        pulled: Numbers = total / (np.abs(likeness).sum(axis=1) + 0.5)
        return pulled

    def add(self, who: str, what: Sequence[str], surprise: Sequence[float]) -> None:
        """Count ratings of one person: how far each was from what the film usually gets."""
        films, before = self.numbers(what), self.seen[who]
        self.seen[who] = seen = np.append(before, films)
        self.surprise[who] = surprises = np.append(self.surprise[who], np.array(surprise, np.float32))
        products = np.outer(surprises[len(before) :], surprises)
        self.agreement[films[:, None], seen] += products
        self.together[films[:, None], seen] += 1
        self.agreement[before[:, None], films] += products[:, : len(before)].T
        self.together[before[:, None], films] += 1

    def numbers(self, what: Sequence[str]) -> Whole:
        """Give the numbers of films."""
        return np.array([self.index[film] for film in what], np.int64)


class FeatureMaker:
    """Turns a person and films into features, and learns the counts as time goes by.

    Dense features are centred, and about one wide: then what learns row by row treats them alike.
    """

    def __init__(self, films: Iterable[str]) -> None:
        """Start with nothing rated.

        Args:
            films: All that can be rated.
        """
        self.rates = Rates()
        self.neighbours = Neighbours(films)

    def context(self, who: str, person: Person) -> dict[str, Value]:
        """Give the features of a person."""
        return {
            "age": person.age // AGE_STEP_YEARS,
            "gender": person.gender,
            "occupation": person.occupation,
            "mood": (self.rates.rate(("person", who)) - LIKED_OVERALL) * 6,
            "experience": (math.log1p(self.rates.rated[("person", who)]) - 4) / 1.25,
        }

    def candidate(self, who: str, what: str, film: Film) -> dict[str, Value]:
        """Give the features of a film, some of them for a person, but for the affinity."""
        usual = self.rates.rate(("person", who))
        tastes = [self.rates.rate(("taste", who, genre), usual) - usual for genre in film.genres]
        return {
            "film": int(what),
            "year": film.year,
            "genres": list(film.genres[:MOST_GENRES]),
            "taste": sum(tastes) / max(1, len(tastes)) * 14,
        }

    def candidates(self, who: str, films: dict[str, Film]) -> dict[str, list[Value]]:
        """Give the features of films for a person, by name."""
        rows = [self.candidate(who, what, film) for what, film in films.items()]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return columns | {"affinity": (self.neighbours.affinity(who, list(films)) * 12).tolist()}

    def learn(self, visit: Sequence[Rating], films: dict[str, Film]) -> None:
        """Count the ratings of a page, after it was made."""
        who = visit[0].person
        surprises = [one.liked - self.rates.rate(("film", one.film)) for one in visit]
        self.neighbours.add(who, [one.film for one in visit], surprises)
        for one in visit:
            tastes = [("taste", who, genre) for genre in films[one.film].genres]
            self.rates.add([("person", who), ("film", one.film), *tastes], one.liked)


def visits(ratings: Iterable[Rating]) -> Iterator[list[Rating]]:
    """Cut ratings into pages: what one person rates in a row, within a few minutes."""
    page: list[Rating] = []
    for rating in ratings:
        if page and not (
            rating.person == page[0].person
            and rating.seconds - page[0].seconds <= PAGE_SECONDS
            and len(page) < PAGE_FILMS
            and all(one.film != rating.film for one in page)
        ):
            yield page
            page = []
        page.append(rating)
    if page:
        yield page


def pages(data: Ratings) -> Iterator[Page]:
    """Make all pages, each from the ratings before it."""
    maker = FeatureMaker(data.films)
    row = 0
    for visit in visits(data.ratings):
        who = visit[0].person
        films = {one.film: data.films[one.film] for one in visit}
        liked = [one.liked for one in visit]
        yield Page(row, maker.context(who, data.people[who]), maker.candidates(who, films), liked)
        maker.learn(visit, films)
        row += len(visit)
