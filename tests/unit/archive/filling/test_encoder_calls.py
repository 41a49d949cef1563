"""A filler's thread asks an embedder that takes long: nothing is embedded twice, nothing waits for ever."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.archive.filling.encoder_calls import EncoderCalls, FillSources, Stop, VersionEmbedder
from headrace.archive.filling.pooled_embedder import Call, DependencyUnavailable, PooledEmbedder, Where
from tests.unit.archive.filling_parts import LengthEmbedder, vector_of
from tests.waiting import until

WHERE: Where = ("texts", 1)
SOON, LATER = [b"one", b"two"], [b"three"]


class Thread:
    """One that asks an embedder, and is not willing to wait."""

    def __init__(self) -> None:
        self.embedder = LengthEmbedder()
        pooled = PooledEmbedder("ill", ["texts"], embedder=self.embedder)
        pooled.is_ready = True
        self.encoder = VersionEmbedder(pooled, self.embedder, 1)
        other = PooledEmbedder("well", ["films"], embedder=LengthEmbedder())
        self.asking = EncoderCalls(FillSources({"texts": [self.encoder]}, {"films": other}), Stop())

    def asks(self, contents: Sequence[bytes], patience: float = 60.0) -> list[list[float]]:
        found: list[list[float]] = self.asking.ask(self.encoder, WHERE, contents, patience).vectors.tolist()
        return found

    def is_told_to_wait(self, contents: Sequence[bytes], patience: float = 60.0) -> Call | None:
        with pytest.raises(DependencyUnavailable) as raised:
            self.asks(contents, patience)
        return raised.value.call

    def has_left_a_call(self) -> Call:
        """Ask what hangs, wait no longer, and have it answered then."""
        self.embedder.hold.clear()
        call = self.is_told_to_wait(SOON, 0.0)
        assert call is not None
        assert self.is_told_to_wait(LATER) is None
        assert self.is_told_to_wait(SOON[:1]) is call
        self.embedder.hold.set()
        until(call.ended.is_set)
        return call


def vectors(contents: Sequence[bytes]) -> list[list[float]]:
    return [vector_of(content.decode()) for content in contents]


def test_results_of_an_encoder_call_are_kept_for_the_messages_that_wait_for_them() -> None:
    thread = Thread()
    call = thread.has_left_a_call()
    assert thread.is_told_to_wait(LATER) is None, "others come after those who were there before"
    thread.asking.stop_awaiting([call, None])
    assert thread.asks([*SOON, *LATER]) == vectors([*SOON, *LATER])
    assert thread.asks(LATER) == vectors(LATER)
    assert thread.embedder.embedded == {"one": 1, "two": 1, "three": 2}


@pytest.mark.parametrize("how", ["its messages are not wanted any more", "its messages are received anew"])
def test_results_that_no_message_waits_for_are_dropped(how: str) -> None:
    thread = Thread()
    call = thread.has_left_a_call()
    if how == "its messages are received anew":
        thread.asking.stop_awaiting_all()
    else:
        thread.asking.stop_awaiting([call])
    assert thread.asks(LATER) == vectors(LATER)
    assert thread.asks(SOON) == vectors(SOON)
    assert thread.embedder.embedded == {"one": 2, "two": 2, "three": 1}
