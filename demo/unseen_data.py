"""Items whose content says something of their click rate: films, by their titles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from demo.data import Rating, Ratings, fetch, load
from headrace.archive.embedders.embedder import TextSettings
from headrace.archive.embedders.text_embedder import open_text
from headrace.base.tensors import Array
from headrace.stream.schema import METADATA_KEY, Field, Schema

_MOST_GENRES = 4
_FILM_YEARS = 5


@dataclasses.dataclass(frozen=True)
class Items:
    """Items with what was seen of them.

    Attributes:
        columns: Their categorical fields, as Arrow columns.
        fields: What these are to a learner.
        content: The name of the vector.
        vectors: float32 ``[items, size]``; a row of zeros is missing.
        clicks: int64 ``[items]``.
        views: int64 ``[items]``.
        rates: The true click rates: float64 ``[items]``; None where nobody knows them.
    """

    columns: dict[str, pa.Array]
    fields: tuple[Field, ...]
    content: str
    vectors: Array
    clicks: Array
    views: Array
    rates: Array | None = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self.clicks)

    def chosen(self, which: Array) -> Items:
        """Some of them, by their numbers."""
        rates = None if self.rates is None else self.rates[which]
        columns = {name: one.take(pa.array(which)) for name, one in self.columns.items()}
        arrays = self.vectors[which], self.clicks[which], self.views[which]
        return Items(columns, self.fields, self.content, *arrays, rates)

    def without_content(self, which: Array) -> Items:
        """The same, but for the vectors where a mask holds: those are missing."""
        vectors = np.where(which[:, None], np.float32(0), self.vectors)
        return dataclasses.replace(self, vectors=vectors)


class Split(NamedTuple):
    """Items to learn from, and ones that nobody has seen."""

    known: Items
    unseen: Items


def films(
    folder: Path,
    seed: int = 0,
    *,
    described: bool = True,
    vectors_of: Callable[[list[str]], Array] | None = None,
) -> Split:
    """MovieLens-100k: four stars and more are a click, each rating a row; a quarter of the films is unseen.

    Args:
        folder: Where the data is, or goes.
        seed: Which films are unseen.
        described: Whether genres and years are among the categorical fields, besides what is known of people.
        vectors_of: Gives the vectors of titles, zeros for those that are missing; MiniLM's if left out.
    """
    data = load(fetch(folder))
    random = np.random.default_rng(seed)
    rated = sorted({one.film for one in data.ratings}, key=int)
    unseen = {rated[number] for number in random.permutation(len(rated))[: len(rated) // 4]}
    titles = (vectors_of or _embedded)([data.films[one].title for one in rated])
    place = {film: number for number, film in enumerate(rated)}
    order = random.permutation(len(data.ratings))
    ratings = [data.ratings[number] for number in order]
    items = Items(
        _columns(data, ratings, described=described),
        tuple(one for one in _FILM_FIELDS if described or one.name not in ("genres", "years")),
        "title",
        titles[[place[one.film] for one in ratings]],
        np.array([one.liked for one in ratings], np.int64),
        np.ones(len(ratings), np.int64),
    )
    is_unseen = np.array([one.film in unseen for one in ratings])
    return Split(items.chosen(np.flatnonzero(~is_unseen)), items.chosen(np.flatnonzero(is_unseen)))


def _embedded(titles: list[str]) -> Array:
    embedder = open_text(TextSettings(), Path())
    vectors = embedder.embed([title.encode() for title in titles]).vectors
    embedder.close()
    return vectors


_FILM_FIELDS = (
    Field(name="user", role="categorical", buckets=4096),
    Field(name="age", role="categorical", buckets=64),
    Field(name="gender", role="categorical", buckets=16, text=True),
    Field(name="occupation", role="categorical", buckets=128, text=True),
    Field(name="genres", role="categorical", buckets=256, text=True, values=_MOST_GENRES),
    Field(name="years", role="categorical", buckets=64),
)


def _columns(data: Ratings, ratings: list[Rating], *, described: bool) -> dict[str, pa.Array]:
    people = [data.people[one.person] for one in ratings]
    columns = {
        "user": pa.array([int(one.person) for one in ratings]),
        "age": pa.array([one.age // 10 for one in people]),
        "gender": pa.array([one.gender for one in people]),
        "occupation": pa.array([one.occupation for one in people]),
    }
    if described:
        seen = [data.films[one.film] for one in ratings]
        columns["genres"] = pa.array([list(one.genres[:_MOST_GENRES]) for one in seen])
        columns["years"] = pa.array([one.year // _FILM_YEARS for one in seen], pa.int64())
    return columns


def write_stream(items: Items, file: Path, *, with_content: bool) -> None:
    """Write items as a stream.

    Args:
        items: The items: a row each.
        file: Where to.
        with_content: Whether the vectors are among the columns.
    """
    columns = dict(items.columns) | {"clicks": pa.array(items.clicks), "views": pa.array(items.views)}
    fields = (Field(name="clicks", role="label"), Field(name="views", role="views"), *items.fields)
    if with_content:
        size = items.vectors.shape[1]
        flat = pa.array(items.vectors.astype(np.float16).reshape(-1))
        missing = pa.array(~items.vectors.any(axis=1))
        columns[items.content] = pa.FixedSizeListArray.from_arrays(
            flat, type=pa.list_(pa.float16(), size), mask=missing
        )
        fields = (*fields, Field(name=items.content, role="vector", size=size))
    batch = pa.record_batch(columns).replace_schema_metadata({METADATA_KEY: Schema(fields=fields).encode()})
    with pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
