"""A model's process: ``python -m headrace.isolation.child``, started by a server and by nobody else.

It loads one version and answers for it, each call in the thread that its slot has here. It ends when its
server says so, closes its end of the socket, or dies, however that comes about.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import re
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec

from headrace.cpus import take_less
from headrace.errors import FailedPrecondition, HeadraceError, ModelError, TooLarge
from headrace.isolation.area import Area
from headrace.isolation.description import Setup, describe, options_of
from headrace.isolation.layouts import Known, Layouts
from headrace.isolation.messages import (
    CLOSE,
    KNOWN,
    NEW_SLOT,
    RELEASE,
    RETAINED,
    SIZE,
    Kind,
    Note,
    copy_tensors,
    end_of,
    error_of,
    failure_of,
    read_bytes,
    read_head,
    start_of,
    view_tensors,
    write,
    write_bytes,
)
from headrace.isolation.restarts import ANOTHER_RELEASE_CODE
from headrace.runtimes import registry
from headrace.servable import Servable
from headrace.tensors import Tensors

_log = logging.getLogger(__name__)

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_OOM_SCORE = "500"


class Model:
    """What all slots answer for."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._servable: Servable | None = None
        self._slots: list[Slot] = []

    @property
    def servable(self) -> Servable:
        """The version.

        Raises:
            FailedPrecondition: It is not loaded.
        """
        if self._servable is None:
            raise FailedPrecondition("the model is not loaded")
        return self._servable

    def open_slot(self, descriptors: list[int], most_bytes: int) -> None:
        """Answer what comes by a slot, in a new thread."""
        requests, answers, memory = descriptors
        slot = Slot(self, requests, answers, Area(memory, most_bytes))
        self._slots = [one for one in self._slots if one.is_open] + [slot]
        threading.Thread(target=slot.run, name="slot", daemon=True).start()

    def load(self, setup: Setup, slot: Slot) -> Servable:
        """Load the version that this process is for."""
        logging.getLogger().setLevel(setup.log_level)
        _limit_memory(setup.memory_bytes)

        def loads() -> None:
            _here.slot = slot
            if setup.gently:
                take_less()
            try:
                ended.append(registry.load(Path(setup.path), options))
            except BaseException as error:  # noqa: BLE001  # It is raised again where it is waited for.
                ended.append(error)

        ended: list[Servable | BaseException] = []
        options = replace(options_of(setup), call=self.call)
        # A thread that takes less cannot take that back, and what it starts takes as little.
        loading = threading.Thread(target=loads, name="load")
        loading.start()
        loading.join()
        loaded = ended[0]
        if isinstance(loaded, BaseException):
            raise loaded
        self._servable = loaded
        gc.collect()
        gc.freeze()  # as the server does with what is there for good
        return loaded

    def call(self, name: str, inputs: Tensors) -> Tensors:
        """Ask another model, for this one: the server does it, in the thread that waits for this process.

        Raises:
            HeadraceError: Why there is no answer.
        """
        slot: Slot | None = getattr(_here, "slot", None)
        for one in [slot] if slot is not None else self._slots:
            found = one.call(name, inputs)
            if found is not None:
                return found
        raise FailedPrecondition(f"cannot call {name!r}: nobody waits for an answer of this model now")

    def close(self) -> None:
        """Close the version, and end the process."""
        if self._servable is not None:
            try:
                self._servable.close()
            except Exception:  # noqa: BLE001 - the boundary to a model's own code; the process ends all the same
                _log.exception("closing the model failed")
        _end(0)


class Slot:
    """Where one call at a time comes in.

    Attributes:
        is_open: Whether more calls may come.
    """

    def __init__(self, model: Model, requests: int, answers: int, area: Area) -> None:
        """Answer for a model.

        Args:
            model: The model.
            requests: The descriptor of the pipe that calls come by.
            answers: The descriptor of the pipe that answers go by.
            area: What both sides share.
        """
        self.is_open = True
        self._model = model
        self._requests = requests
        self._answers = answers
        self._area = area
        self._inside = False
        self._floor = 0
        self._lock = threading.Lock()
        self._layouts = Layouts()

    def run(self) -> None:
        """The thread."""
        _here.slot = self
        with suppress(BrokenPipeError):  # nobody waits any more
            while said := os.read(self._requests, SIZE):
                answer = self._answer(Note.of(said))
                with self._lock:  # another thread of the model may be asking through this slot
                    self._inside = False
                os.write(self._answers, answer.packed())
        self.is_open = False
        self._area.close()
        os.close(self._requests)
        os.close(self._answers)

    def _answer(self, note: Note) -> Note:
        """Answer a call; whatever the model raises is its answer."""
        if note.kind == Kind.PREDICT | KNOWN:
            return self._answer_known(self._layouts.told[note.offset])
        self._area.see(note.area_bytes)
        root = self._area.view[:]
        nobody = sys.getrefcount(root)
        try:
            answer = self._asked(note, root)
        except BaseException as error:  # noqa: BLE001  # The boundary to a model's own code.
            answer = self._failure(error)
        if sys.getrefcount(root) > nobody:  # the model, or what it started, has kept an array
            answer = answer._replace(kind=answer.kind | RETAINED)
        return answer

    def _answer_known(self, known: Known) -> Note:
        """Answer a batch of a layout that came before."""
        self._floor, self._inside = known.end, True
        try:
            outputs = self._model.servable.predict(dict(known.tensors), known.about)
            answer = self._layouts.write(self._area, known.end, Kind.ANSWER, "", outputs)
            del outputs  # it may be views of the inputs
        except BaseException as error:  # noqa: BLE001  # The boundary to a model's own code.
            answer = self._failure(error)
        return answer._replace(kind=answer.kind | RETAINED) if known.is_retained else answer

    def _asked(self, note: Note, root: memoryview) -> Note:
        if note.kind == Kind.LOAD:
            setup = msgspec.json.decode(read_bytes(self._area, note), type=Setup)
            self._floor, self._inside = start_of(note), True
            text, samples = describe(self._model.load(setup, self))
            return write(self._area, self._floor, Kind.ANSWER, text, samples)[0]
        servable = self._model.servable
        head = read_head(self._area, note)
        inputs = view_tensors(root, head, note, servable.signatures)
        self._layouts.hear(self._area, head, note)
        self._floor, self._inside = end_of(head, note), True
        if note.kind == Kind.EXPLAIN:
            explain: Callable[[Tensors, str], object] = servable.explain  # type: ignore[attr-defined]
            said = msgspec.msgpack.encode(explain(inputs, head.about))
            return write_bytes(self._area, self._floor, Kind.ANSWER, said)
        outputs = servable.predict(inputs, head.about)
        return self._layouts.write(self._area, self._floor, Kind.ANSWER, "", outputs)

    def _failure(self, error: BaseException) -> Note:
        if not isinstance(error, HeadraceError):
            _log.error("the model raised an unexpected error", exc_info=error)
        try:
            return write_bytes(self._area, self._floor, Kind.FAILURE, failure_of(error))
        except TooLarge:  # what is wrong with very many rows
            short = failure_of(ModelError(str(error)))
            return write_bytes(self._area, self._floor, Kind.FAILURE, short)

    def call(self, name: str, inputs: Tensors) -> Tensors | None:
        """Ask another model; None if nobody waits at this slot."""
        with self._lock:
            if not self._inside:
                return None
            note, _ = write(self._area, self._floor, Kind.CALL, name, inputs)
            os.write(self._answers, note.packed())
            answer = Note.of(os.read(self._requests, SIZE))
            if answer.kind == Kind.FAILURE:
                raise error_of(read_bytes(self._area, answer))
            head = read_head(self._area, answer)
            return copy_tensors(self._area.view, head, answer)


def main() -> None:
    """Serve one server until it has enough of it."""
    control = socket.socket(fileno=int(sys.argv[1]))
    _end_with(int(sys.argv[2]))
    if sys.argv[3:] != [RELEASE]:  # before anything is read: it may not be understood
        _end(ANOTHER_RELEASE_CODE)
    faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    # A terminal, or whoever stops a service, sends these to all processes at once: but the server still needs
    # this one, for what it has accepted. A handler, unlike ignoring, is not passed on to other programs.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    with suppress(OSError):  # the system ends this before it ends the server
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    model = Model()
    while True:
        said, descriptors, _, _ = socket.recv_fds(control, NEW_SLOT.size, 3)
        if not said:
            _end(0)  # the server is gone
        order, most_bytes = NEW_SLOT.unpack(said)
        if order == CLOSE:
            model.close()
        model.open_slot(descriptors, most_bytes)


def _end_with(parent: int) -> None:
    """Be killed when the server dies, even while a model's native code holds on to everything."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            _end(1)


def _end(code: int) -> NoReturn:
    """End at once: threads may compute, or hang."""
    logging.shutdown()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


def _limit_memory(memory_bytes: int) -> None:
    """Let no allocation take much more than the model may: twice as much, beside what is there already."""
    if not memory_bytes:
        return
    told = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    there = int(told[1]) * 1024 if told else 0
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = there + 2 * memory_bytes
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


_here = threading.local()

if __name__ == "__main__":
    main()
