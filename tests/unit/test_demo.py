"""The demonstration: the parts that its figures come from, and a small one as a whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from demo import clicks, clients, features, replay, report, run, scores, server
from demo.data import Film, Person, Rating, Ratings
from headrace.stream.block import Features
from headrace.stream.block_joining import Joiner

PEOPLE = {"1": Person(24, "M", "writer"), "2": Person(53, "F", "artist")}
FILMS = {"7": Film("A", 1995, ("Comedy",)), "8": Film("B", 0, ("Drama", "War"))}


def few_ratings(last_liked: bool = True) -> Ratings:
    """Two people rate two films each: pages of two, one and one."""
    ratings = [
        Rating("1", "7", 0, True),
        Rating("1", "8", 1, False),
        Rating("2", "7", 2, True),
        Rating("2", "8", 3 + features.PAGE_SECONDS, last_liked),
    ]
    return Ratings(PEOPLE, FILMS, ratings)


def many_ratings(count: int) -> Ratings:
    """Draw ratings of people who like every second film."""
    random = np.random.default_rng(5)
    people = {str(number): Person(20 + number % 40, "MF"[number % 2], "writer") for number in range(60)}
    films = {str(number): Film(f"{number}", 1950 + number % 50, ("War", "Drama")) for number in range(80)}
    ratings = [
        Rating(str(time // 8 % 60), str(film), time, bool(random.random() < (0.2 if film % 2 else 0.8)))
        for time, film in enumerate(random.integers(0, 80, count).tolist())
    ]
    return Ratings(people, films, ratings)


def test_the_scores_are_those_of_scikit_learn_ties_included() -> None:
    generator = np.random.default_rng(7)
    truth = generator.integers(0, 2, 500).astype(np.float64)
    answers = np.round(generator.random(500), 2)
    assert scores.auc(truth, answers) == pytest.approx(roc_auc_score(truth, answers))
    assert scores.logloss(truth, answers) == pytest.approx(log_loss(truth, np.clip(answers, 1e-7, 1 - 1e-7)))


def test_a_page_is_what_one_person_rates_within_minutes() -> None:
    pages = list(features.pages(few_ratings()))
    assert [(page.first_row, page.liked) for page in pages] == [(0, [True, False]), (2, [True]), (3, [True])]
    long = [Rating("1", str(film), 0, True) for film in range(features.PAGE_FILMS + 1)]
    assert [len(page) for page in features.visits(long)] == [features.PAGE_FILMS, 1]
    again = [Rating("1", "7", 0, True)] * 2
    assert [len(page) for page in features.visits(again)] == [1, 1], "a film is on a page once"


def test_features_never_see_the_verdicts_that_they_are_for() -> None:
    liked, not_liked = (list(features.pages(few_ratings(last))) for last in (True, False))
    assert [page[:3] for page in liked] == [page[:3] for page in not_liked]


def test_features_see_the_verdicts_before() -> None:
    pages = list(features.pages(few_ratings()))
    assert pages[1].context["mood"] == 0.0
    assert isinstance(mood := pages[2].context["mood"], float)
    assert mood > 0, "the person has liked a film meanwhile"


def test_the_stream_has_a_row_a_film_and_says_what_its_columns_are() -> None:
    pages = list(features.pages(few_ratings()))
    block = Joiner(Features.of(features.SCHEMA)).join(clicks.record_batch(pages))
    assert block.labels.tolist() == [1, 0, 1, 1]
    assert (block.indices[0, :3] == block.indices[1, :3]).all(), "the person is the same"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, clicks.ARROW_SCHEMA) as writer:
        writer.write_batch(clicks.record_batch(pages))
    assert b"headrace" in pa.ipc.open_stream(sink.getvalue()).schema.metadata


def test_a_request_says_the_person_once() -> None:
    (page, *_) = features.pages(few_ratings())
    shapes = {field.name: clients.shape(field, page) for field in clients.INPUTS}
    assert shapes["occupation"] == [1]
    assert shapes["film"] == [2]
    assert shapes["genres"] == [2, features.MOST_GENRES]
    values = {field.name: clients.values(field, page) for field in clients.INPUTS}
    assert values["film"] == [7, 8]
    assert values["genres"] == ["Comedy", *[""] * 5, "Drama", "War", *[""] * 4]


def test_only_rows_that_both_versions_answered_are_compared() -> None:
    record = replay.Record.of(list(features.pages(few_ratings())))
    record.newest[:] = [0.9, 0.1, np.nan, 0.5]
    record.frozen[:] = [0.1, 0.9, 0.5, np.nan]
    assert report.scores(record, np.ones(4, np.bool_))[:3] == (2, 1.0, 0.0)


@pytest.mark.rest
def test_the_whole_demonstration_on_a_few_ratings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "LONGEST_WAIT_SECONDS", 60.0)  # a busy machine stalls; no request may fail
    monkeypatch.setattr(server, "STOP_SECONDS", 60.0)
    pages = features.pages(many_ratings(6000))
    picture = tmp_path / "demo.png"
    assert asyncio.run(run.run(pages, 1500, 3.0, picture)) == 0
    printed = capsys.readouterr().out
    assert "failed:" not in printed
    assert picture.exists()
    assert "differ by 0 at most" in printed
