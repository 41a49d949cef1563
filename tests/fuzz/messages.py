"""What processes tell each other, and what waits in queues, under fuzzing: nothing of it need be true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import numpy as np

import headrace.isolation.messages as isolation
import headrace.sealed_memory.keeper_client as sealed
import headrace.server.handover.messages as handover
import headrace.workers.messages as workers
from headrace.archive.lookup.miss_queue import Wanted, wanted_of
from headrace.base.errors import HeadraceError, InvalidRequest
from headrace.config import ServerConfig
from headrace.isolation.model_process import GARBAGE
from headrace.isolation.shared_area import Area, new_file
from headrace.sealed_memory.file_copying import Content
from headrace.storage.queues.queue import Message

_MOST_BYTES = 2**20


class Messages:
    """A reader for each kind of message, and an area that a model's process shares."""

    def __init__(self) -> None:
        """Make the area."""
        self._area = Area(new_file("fuzzed"), _MOST_BYTES)
        self._area.grow(_MOST_BYTES)
        question = sealed.Question(sealed.FORMAT, "copy", Content(9, "a" * 64))
        self._readers: list[tuple[Callable[[bytes], object], list[bytes]]] = [
            (workers.decoded, [workers.encoded(one) for one in _of_workers()]),
            (handover.decoded, [handover.encoded(one) for one in _of_handover()]),
            (
                sealed.question,
                [msgspec.msgpack.encode(question)],
            ),
            (sealed.reply, [msgspec.msgpack.encode(sealed.Digested("a" * 64))]),
            (self._answer, [self._good_answer(), *self._good_errors()]),
            (lambda data: wanted_of(Message(b"key", data)), [Wanted("items", 1, "a").message().body]),
        ]

    def read(self, data: bytes) -> None:
        """The first byte says who is told the rest."""
        if data:
            reader, _ = self._readers[data[0] % len(self._readers)]
            with suppress(HeadraceError, msgspec.MsgspecError):
                reader(data[1:])

    def seeds(self) -> Iterator[bytes]:
        """A good message of each kind."""
        for number, (_, good) in enumerate(self._readers):
            for one in good:
                yield bytes((number,)) + one

    def _answer(self, data: bytes) -> None:
        """What a model's process answers: the note through the pipe, the rest in the area."""
        content = data[isolation.SIZE :][:_MOST_BYTES]
        self._area.view[: len(content)] = content
        with suppress(*GARBAGE):
            note = isolation.Note.of(data[: isolation.SIZE])
            isolation.copy_tensors(self._area.view, isolation.read_head(self._area, note), note)
        with suppress(*GARBAGE):
            isolation.error_of(content)

    def _good_answer(self) -> bytes:
        tensors = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.array([b"a", b""], object)}
        note, _ = isolation.write(self._area, 0, isolation.Kind.ANSWER, "", tensors)
        return note.packed() + bytes(self._area.view[: note.area_bytes])[:4096]

    def _good_errors(self) -> list[bytes]:
        said = isolation.failure_of(InvalidRequest("no", field="x"))
        return [bytes(isolation.SIZE) + said]


def _of_workers() -> list[workers.Message]:
    told = workers.ModelState((), answers=True, problems=("slow",))
    return [
        workers.Begin(0, None, ServerConfig(), (3, 4), 2, announces=True, json=False, begun=1.0, waits=False,
                      fills=True, keeper=None),
        workers.Drain(is_followed=True), workers.Finish(2.0), workers.Failed("no", wrong=True),
        workers.States({"m": told, "n": None}, ready=True), workers.View({"m": told}, ready=True),
        workers.Wants({}, {"m": "empty"}), workers.Act("m", unload=True), workers.Scraped(1, b"text"),
        workers.Count(1, ("m",), None), workers.Counted(1, ()),
    ]  # fmt: skip


def _of_handover() -> list[handover.Message]:
    return [
        handover.Hello("1.0", (1,)), handover.HandoverRefused("no"), handover.Ready({"m": (1, 2)}),
        handover.Take(), handover.Given(1, "1.0", sets=1, free=(), leading=(0,), has_many=True, admin=0),
    ]  # fmt: skip
