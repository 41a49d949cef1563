"""One embedder that is down, or hangs: others fill on, and its keys are filled when it is back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import pytest

from headrace.archive.embedders.embedder import Embedded
from headrace.archive.filling import pooled_embedder, retries_and_dead_letters
from headrace.archive.filling.filler import Filler
from headrace.archive.filling.pooled_embedder import PooledEmbedder
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.base.errors import ConfigError, Unavailable
from headrace.storage.opening import open_queue, open_store
from tests.unit.archive.filling_parts import LengthEmbedder, status_of
from tests.waiting import until

FILMS = [f"film {number}" for number in range(500)]
TEXTS = [f"text {number}" for number in range(300)]


@pytest.fixture(params=["memory", "lmdb"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    space = {"dimension": 4, "embedder": "lengths"}
    table = {
        "store": {"kind": request.param},
        "queue": {"kind": request.param, "visibility_seconds": 60.0},
        "cache": {"absent_seconds": 0.01},
        "spaces": {"films": space | {"embedder": "well"}, "texts": space | {"embedder": "ill"}},
    }
    config = archive_config(table, "archive.toml", tmp_path)
    embedders = {"well": LengthEmbedder("well"), "ill": LengthEmbedder("ill")}
    with Archive(config, open_store(config.store), open_queue(config.queue), embedders.__getitem__) as opened:
        yield opened


class Filling:
    """A filler at work; stopped in the end."""

    def __init__(
        self, archive: Archive, embedders: Mapping[str, LengthEmbedder | PooledEmbedder], seconds: float = 5.0
    ) -> None:
        by_space = {space: [embedder] for space, embedder in embedders.items()}
        self._filler, self._seconds = Filler(archive, by_space, batch=16), seconds

    def __enter__(self) -> Filler:
        self._filler.start()
        return self._filler

    def __exit__(self, *_: object) -> None:
        self._filler.stop(self._seconds)


def all_found(archive: Archive, space: str, keys: Sequence[str]) -> bool:
    return bool(archive.lookup(space, keys).found.all())


def is_empty(archive: Archive) -> bool:
    return archive.queue.depth().messages == 0


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["down", "hanging"])
def test_an_unavailable_embedder_delays_only_its_own_keys(
    archive: Archive, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    well, ill = LengthEmbedder("well"), LengthEmbedder("ill")
    if kind == "down":
        ill.busy.set()
    else:
        ill.hold.clear()
    caplog.set_level(logging.WARNING)
    with Filling(archive, {"films": well, "texts": ill}):
        archive.want("texts", TEXTS)
        archive.want("films", FILMS)
        until(lambda: all_found(archive, "films", FILMS))
        if kind == "down":  # more calls than a content may be tried
            until(lambda: ill.calls >= 4)
            assert ill.calls < 12  # one call at a time to see whether it is back, and not one a batch
            (trouble,) = archive.troubles.values()
            assert trouble == (
                "the embedder 'ill' (of texts) is unavailable: the encoder is starting; its keys wait"
            )
        assert not ill.embedded
        until(lambda: archive.queue.depth().messages == len(TEXTS))
        ill.busy.clear()
        ill.hold.set()
        until(lambda: all_found(archive, "texts", TEXTS) and is_empty(archive))
        until(lambda: not archive.troubles)
    assert set(ill.embedded.values()) == {1}
    assert set(well.embedded.values()) == {1}
    assert not list(archive.dead_letters.all())
    if kind == "down":
        said = [record.message for record in caplog.records if "'ill'" in record.message]
        assert len(said) == 2
        assert "answers again after" in said[1]


@pytest.mark.rest
def test_messages_set_aside_for_long_go_back_to_the_queue(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue may keep all that is behind a message until that is acknowledged."""
    monkeypatch.setattr(retries_and_dead_letters, "_LONGEST_ASIDE_SECONDS", 0.5)
    ill = LengthEmbedder("ill")
    ill.busy.set()
    archive.want("texts", TEXTS[:20])
    with Filling(archive, {"films": LengthEmbedder("well"), "texts": ill}):
        until(lambda: 0 < archive.queue.depth().oldest_seconds < 1.0 < time.monotonic() and ill.calls >= 3)
        ill.busy.clear()
        until(lambda: all_found(archive, "texts", TEXTS[:20]) and is_empty(archive))
    assert set(ill.embedded.values()) == {1}


def test_a_hung_embedder_does_not_block_a_stop_and_its_keys_are_released(
    archive: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    ill = LengthEmbedder("ill")
    ill.hold.clear()
    pooled = PooledEmbedder("ill", ["texts"], lambda: ill)
    archive.want("texts", TEXTS[:30])
    filling = Filling(archive, {"films": LengthEmbedder("well"), "texts": pooled}, 0.1)
    with filling:
        until(lambda: ill.calls)
    assert not ill.hold.is_set(), "the filler has ended, and the embedder hangs still"
    assert not ill.embedded
    pooled.close()
    assert "the embedder 'ill' (of texts) is still working on a batch; it is abandoned" in caplog.text
    again = LengthEmbedder("ill")
    with Filling(archive, {"films": LengthEmbedder("well"), "texts": again}):
        until(lambda: all_found(archive, "texts", TEXTS[:30]) and is_empty(archive))
    ill.hold.set()


def test_an_embedder_is_opened_once_it_becomes_available(archive: Archive) -> None:
    ill, refuses = LengthEmbedder("ill"), [Unavailable("nobody is there")]

    def open_one() -> LengthEmbedder:
        if refuses:
            raise refuses[0]
        return ill

    pooled = PooledEmbedder("ill", ["texts"], open_one, address="http://encoder:8501")
    archive.want("texts", TEXTS[:40])
    archive.want("films", FILMS)
    with Filling(archive, {"films": LengthEmbedder("well"), "texts": pooled}):
        until(lambda: all_found(archive, "films", FILMS))
        until(lambda: archive.troubles)
        archive._reporter._due = 0
        archive._reporter.report()
        (warning,) = status_of(archive).warnings
        assert "the embedder 'ill' at http://encoder:8501 (of texts) cannot be opened: nobody" in warning
        refuses.clear()
        until(lambda: all_found(archive, "texts", TEXTS[:40]) and is_empty(archive))
        until(lambda: not archive.troubles)
    pooled.close()
    assert not list(archive.dead_letters.all())


def test_an_embedder_that_is_not_open_gives_the_reason() -> None:
    def wrong() -> LengthEmbedder:
        raise ConfigError("no such thing")

    with pytest.raises(ConfigError, match="no such thing"):
        PooledEmbedder("ill", ["texts"], wrong).lend(10.0)
    hanging = LengthEmbedder()
    hanging.hold.clear()

    def slow() -> LengthEmbedder:
        hanging.hold.wait(120)
        return hanging

    pooled = PooledEmbedder("ill", ["texts"], slow)
    with pytest.raises(Unavailable, match=r"the embedder 'ill' \(of texts\) is not open yet"):
        pooled.lend(0.05)
    with pytest.raises(Unavailable, match="is not open yet"):
        pooled.lend(10.0)  # waits no second time
    hanging.hold.set()
    until(lambda: pooled.embedder)
    assert pooled.lend(10.0) is hanging
    pooled.close()


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["down", "hanging"])
def test_an_outage_is_logged_repeatedly_until_it_ends(
    archive: Archive, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pooled_embedder, "_TOLD_EVERY_SECONDS", 0.5)
    monkeypatch.setattr(pooled_embedder, "_LONG_SECONDS", 0.5)
    ill = LengthEmbedder("ill")
    if kind == "down":
        ill.busy.set()
        first, again, over = "is unavailable: the encoder is starting", " s now", "answers again after"
    else:
        ill.hold.clear()
        first = again = "has been working on one batch for more than"
        over = "has answered"
    archive.want("texts", ["one"])
    with Filling(archive, {"films": LengthEmbedder("well"), "texts": ill}):
        until(lambda: sum(again in line for line in caplog.messages) >= 3)
        assert any(first in line and "'ill' (of texts)" in line for line in caplog.messages)
        assert any(first in trouble for trouble in archive.troubles.copy().values())
        ill.busy.clear()
        ill.hold.set()
        until(lambda: any(over in line for line in caplog.messages))
        until(lambda: not archive.troubles)


class Choosy(LengthEmbedder):
    """Answers as a server whose worker dies of one content: it cannot be asked, and then again it can."""

    def embed(self, contents: Sequence[bytes]) -> Embedded:
        if any(b"kills" in content for content in contents):
            raise Unavailable("the server answered 503", retry_after_seconds=0.05)
        return super().embed(contents)


def test_a_content_that_an_embedder_refuses_holds_up_no_others_for_good(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled_embedder, "_FIRST_PAUSE_SECONDS", 0.05)
    ill = Choosy("ill")
    archive.want("texts", [*TEXTS[:100], "it kills", *TEXTS[100:]])
    with Filling(archive, {"films": LengthEmbedder("well"), "texts": ill}):
        until(lambda: all_found(archive, "texts", TEXTS))
        numbers = count()

        def has_letter() -> bool:
            archive.want("texts", [f"more {next(numbers)}"])  # so that others are answered in between
            return bool(list(archive.dead_letters.all()))

        until(has_letter)
        until(lambda: is_empty(archive))
    (letter,) = archive.dead_letters.all()
    assert (letter.key, letter.is_final) == ("it kills", False)
    assert letter.reason == (
        "the encoder refused it 5 times, but answered others in between: the server answered 503"
    )
    assert set(ill.embedded.values()) == {1}
