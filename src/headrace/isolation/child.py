"""A model's process: ``python -m headrace.isolation.child``, which only a server starts.

It loads one version and answers its calls, each in the thread of its slot. It exits when the server orders
it, closes its end of the socket, or dies for any reason.
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np

from headrace.base.cpus import take_less
from headrace.base.errors import FailedPrecondition, HeadraceError, ModelError, NotLoadable, TooLarge
from headrace.base.tensors import STRING, Array, Tensors
from headrace.isolation.layout_cache import Known, Layouts
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
from headrace.isolation.model_description import Setup, describe, options_of
from headrace.isolation.replica_restarts import ANOTHER_RELEASE_CODE
from headrace.isolation.shared_area import Area
from headrace.model.casting import typed
from headrace.model.misfits import ragged
from headrace.model.servable import Servable, TensorSpec
from headrace.model.streaming_servable import is_streaming
from headrace.runtimes import registry

_log = logging.getLogger(__name__)

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_OOM_SCORE = "500"
_MOST_SAID = 4096


class Model:
    """The model of this process, called through all slots."""

    def __init__(self) -> None:
        """Begin without a loaded version."""
        self._servable: Servable | None = None
        self._slots: list[Slot] = []

    @property
    def servable(self) -> Servable:
        """The loaded version.

        Raises:
            FailedPrecondition: It is not loaded.
        """
        if self._servable is None:
            raise FailedPrecondition("the model is not loaded")
        return self._servable

    def open_slot(self, descriptors: list[int], most_bytes: int) -> None:
        """Open a slot, and answer its calls in a new thread."""
        requests, answers, memory = descriptors
        slot = Slot(self, requests, answers, Area(memory, most_bytes))
        self._slots = [one for one in self._slots if one.is_open] + [slot]
        threading.Thread(target=slot.run, name="slot", daemon=True).start()

    def load(self, setup: Setup, slot: Slot) -> Servable:
        """Load the version, and return it."""
        logging.getLogger().setLevel(setup.log_level)
        _limit_memory(setup.memory_bytes)

        def loads() -> None:
            _here.slot = slot
            if setup.gently:
                take_less()
            try:
                ended.append(registry.load(Path(setup.path), options))
            except BaseException as error:  # noqa: BLE001  # raised again in the waiting thread
                ended.append(error)

        ended: list[Servable | BaseException] = []
        options = replace(options_of(setup), call=self.call)
        # A thread cannot raise its priority again after `take_less`, and threads that it starts inherit it.
        loading = threading.Thread(target=loads, name="load")
        loading.start()
        loading.join()
        loaded = ended[0]
        if isinstance(loaded, BaseException):
            raise loaded
        if is_streaming(loaded):
            loaded.close()
            raise NotLoadable(
                "predict yields its answer in parts, which a process of its own (isolate, "
                "batching.instance_processes) does not pass on: set isolate = false for this model, without "
                "instance_processes, or return one mapping"
            )
        self._servable = loaded
        gc.collect()
        gc.freeze()  # excludes permanent objects from collections, as in the server
        return loaded

    def call(self, name: str, inputs: Mapping[str, object]) -> Tensors:
        """Call another model; the server makes the call in the thread that waits for this slot's answer.

        Args:
            name: The model.
            inputs: Arrays or lists.

        Raises:
            HeadraceError: The call failed, or no thread of the server waits.
        """
        given = {one: _as_array(one, value) for one, value in inputs.items()}
        slot: Slot | None = getattr(_here, "slot", None)
        for one in [slot] if slot is not None else self._slots:
            found = one.call(name, given)
            if found is not None:
                return found
        raise FailedPrecondition(f"cannot call {name!r}: no request to this model is being answered")

    def close(self) -> None:
        """Close the version, and exit."""
        if self._servable is not None:
            try:
                self._servable.close()
            except Exception:  # noqa: BLE001 - the process exits all the same
                _log.exception("closing the model failed")
        _end(0)


class Slot:
    """The process's side of a slot, which carries one call at a time.

    Attributes:
        is_open: Whether more calls may arrive.
    """

    def __init__(self, model: Model, requests: int, answers: int, area: Area) -> None:
        """Create a slot of a model.

        Args:
            model: The model.
            requests: Descriptor of the pipe for requests.
            answers: Descriptor of the pipe for answers.
            area: Memory shared by both sides.
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
        """Answer calls until the server closes the slot; the main function of its thread."""
        _here.slot = self
        with suppress(BrokenPipeError):  # the server has closed the slot
            while said := os.read(self._requests, SIZE):
                answer = self._answer(Note.of(said))
                with self._lock:  # another thread of the model may be making a call through this slot
                    self._inside = False
                os.write(self._answers, answer.packed())
        self.is_open = False
        self._area.close()
        os.close(self._requests)
        os.close(self._answers)

    def _answer(self, note: Note) -> Note:
        """Answer a call; an exception of the model becomes the answer."""
        if note.kind == Kind.PREDICT | KNOWN:
            return self._answer_known(note.offset)
        self._area.see(note.area_bytes)
        root = self._area.view[:]
        nobody = sys.getrefcount(root)
        try:
            answer = self._asked(note, root)
        except BaseException as error:  # noqa: BLE001  # a model may raise anything
            answer = self._failure(error)
        if sys.getrefcount(root) > nobody:  # the model or one of its threads has kept an array
            answer = answer._replace(kind=answer.kind | RETAINED)
        return answer

    def _answer_known(self, number: int) -> Note:
        """Answer a batch of a known layout."""
        known: Known | None = None
        try:
            known = self._layouts.told[number]
            self._floor, self._inside = known.end, True
            outputs = self._model.servable.predict(dict(known.tensors), known.about)
            answer = self._layouts.write(self._area, known.end, Kind.ANSWER, "", outputs)
            del outputs  # may hold views of the inputs, which `is_retained` would count
        except BaseException as error:  # noqa: BLE001  # a model may raise anything
            answer = self._failure(error)
        is_retained = known is not None and known.is_retained
        return answer._replace(kind=answer.kind | RETAINED) if is_retained else answer

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
        outputs = servable.predict(inputs, head.about)
        return self._layouts.write(self._area, self._floor, Kind.ANSWER, "", outputs)

    def _failure(self, error: BaseException) -> Note:
        if not isinstance(error, HeadraceError):
            _log.error("the model raised an unexpected error", exc_info=error)
        try:
            return write_bytes(self._area, self._floor, Kind.FAILURE, failure_of(error))
        except TooLarge:  # errors of very many rows: send the text only, over the inputs, which are done with
            short = failure_of(ModelError(str(error)[:_MOST_SAID]))
            return write_bytes(self._area, 0, Kind.FAILURE, short)

    def call(self, name: str, inputs: Tensors) -> Tensors | None:
        """Call another model; return None if no call is in progress in this slot."""
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


def _as_array(name: str, value: object) -> Array:
    """Return the values of another model's input as an array that a message can carry.

    Raises:
        InvalidRequest: They are of different types or lengths.
    """
    texts = TensorSpec(name, STRING, ())
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ragged(texts, value) from error
    return typed(texts, value) if array.dtype.kind in "OUS" else array


def main() -> None:
    """Run the process until the server ends it or is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    _end_with(int(sys.argv[2]))
    if sys.argv[3:] != [RELEASE]:  # before any message is decoded: the format may differ
        _end(ANOTHER_RELEASE_CODE)
    faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    # A terminal or a service manager sends these to all processes, but the server still needs this one for
    # accepted requests. A handler, unlike SIG_IGN, is not inherited by programs that the model starts.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    with suppress(OSError):  # the OOM killer then chooses this process before the server
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
    """Have the kernel kill this process when the server dies, even while native code holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # the server died before the call
            _end(1)


def _end(code: int) -> NoReturn:
    """Exit without waiting for other threads, which may compute or hang."""
    logging.shutdown()
    with suppress(OSError, ValueError, AttributeError):  # closed; None
        sys.stdout.flush()
    os._exit(code)


def _limit_memory(memory_bytes: int) -> None:
    """Limit the process's data memory to its current size plus twice the model's limit."""
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
