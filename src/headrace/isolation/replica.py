"""A replica: one process of a version, kept running.

When its process ends, a new one is loaded in the background. A process that has grown too large is replaced
by a new one before it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from headrace.config import IsolationPolicy
from headrace.errors import HeadraceError, LoadError, ModelDied, NotLoadable, Unavailable
from headrace.isolation.description import Description, described
from headrace.isolation.messages import (
    KNOWN,
    Kind,
    Note,
    copy_tensors,
    read_head,
    write_bytes,
)
from headrace.isolation.process import Ask, ModelProcess, Retired
from headrace.isolation.restarts import Ending, Restarts
from headrace.isolation.slot import Limit, Slot
from headrace.servable import DEFAULT_SIGNATURE, Servable, Signature
from headrace.tensors import Tensors

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Which(NamedTuple):
    """The version that is isolated.

    Attributes:
        model: The model's name.
        version: The version's number.
        path: Its directory.
        check: Raises LoadError where what lies there is not what was checked before the first start.
    """

    model: str
    version: int
    path: Path
    check: Callable[[], object] = lambda: None


class Recipe(NamedTuple):
    """How each process of a version is made.

    Attributes:
        which: The version.
        setup: What the process is told to load, encoded.
        policy: What the process may take.
        ask: Asks another model, for this one.
        load_limit: How long loading may take.
        batch_limit: How long a batch may take.
        warm: Warms up each process but the first.
    """

    which: Which
    setup: bytes
    policy: IsolationPolicy
    ask: Ask | None
    load_limit: Limit
    batch_limit: Limit
    warm: Callable[[Servable], object]


class Replica:
    """One process of a version, and the one that takes its place.

    Attributes:
        process: The process that answers; None while there is none.
        back_at: When the next process is started, on the monotonic clock.
        loaded_in: How many seconds the last process took to load.
    """

    def __init__(self, recipe: Recipe, restarts: Restarts, on_change: Callable[[], object]) -> None:
        """Start nothing yet.

        Args:
            recipe: How a process is made.
            restarts: Counts the restarts of all replicas of the version.
            on_change: Called in any thread when there is a process, or none any more.
        """
        self.process: ModelProcess | None = None
        self.back_at = self.loaded_in = 0.0
        self._recipe = recipe
        self._restarts = restarts
        self._on_change = on_change
        self._about: dict[str, Any] = {"model": recipe.which.model, "version": recipe.which.version}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._serves = self._replacing = False
        self._trouble, self._last = "its process ended", Ending("exit", "ended")

    # --- life ---

    def start(self) -> tuple[Description, Mapping[str, Signature]]:
        """Load the version in a first process, in a loader thread.

        Raises:
            LoadError: It cannot be loaded, or its process ended over it.
        """
        self.process, said, signatures = self._started()
        return said, signatures

    def start_warm(self) -> None:
        """Load the version in a first process, and warm that up, in a loader thread.

        Raises:
            LoadError: It cannot be loaded or warmed up, or its process ended over it.
        """
        self.process = self._warmed()

    def check(self) -> None:
        """Check that the first process is there still.

        Raises:
            LoadError: It has ended already.
        """
        process = self.process
        if process is None or process.ending is not None:
            said = process.ending.said if process is not None and process.ending is not None else "ended"
            raise LoadError(f"its process {said} while it was warmed up")

    def serve(self) -> None:
        """From now on, replace the process when it ends or has grown too large.

        Raises:
            LoadError: It has ended already.
        """
        with self._lock:
            self.check()
            self._serves = True

    def close(self) -> None:
        """Let the model free what it holds, and end the process."""
        with self._lock:
            self._closed.set()
            process, self.process = self.process, None
        self._on_change()
        if process is not None:
            process.close()

    @property
    def is_ready(self) -> bool:
        """Whether its process takes calls."""
        process = self.process
        return process is not None and process.takes_calls

    @property
    def away(self) -> str:
        """Why there is no process, and when there is one again."""
        seconds = self.back_at - time.monotonic()
        following = f"is started in {seconds:.1f} s" if seconds > 0 else "is being loaded"
        return f"{self._trouble}; a new one {following}"

    def call(self, write_it: Callable[[Slot], Note], read_it: Callable[[Slot, Note], ResultT]) -> ResultT:
        """Ask its process something, as ``ModelProcess.call`` does.

        Raises:
            Retired: There is no process that takes calls.
            HeadraceError: What the model said, or how its process ended meanwhile.
        """
        while (process := self.process) is not None and process.takes_calls:
            with suppress(Retired):  # another one has taken its place, or it has just ended
                return process.call(write_it, read_it, self._recipe.batch_limit, self._recipe.ask)
        raise Retired

    # --- processes ---

    def _started(self) -> tuple[ModelProcess, Description, Mapping[str, Signature]]:
        """A new process, with the version loaded.

        Raises:
            LoadError: It could not be started, or did not load it.
        """
        process = ModelProcess(self._about, self._recipe.policy, self._ended, self._grown)
        began = time.monotonic()
        try:
            process.start()
        except (OSError, RuntimeError) as error:
            raise LoadError("its process could not be started") from error
        try:
            said, signatures = self._loaded_by(process)
        except BaseException:
            process.close()
            raise
        self.loaded_in = time.monotonic() - began
        return process, said, signatures

    def _loaded_by(self, process: ModelProcess) -> tuple[Description, Mapping[str, Signature]]:
        recipe = self._recipe
        write_it = partial(_write_load, recipe.setup)
        try:
            found = process.call(write_it, _read_description, recipe.load_limit, recipe.ask)
        except (ModelDied, Retired) as error:
            ending = process.ending.said if process.ending is not None else "ended"
            raise LoadError(f"its process {ending} while it loaded the version") from error
        except HeadraceError as error:
            if isinstance(error, LoadError):
                raise
            raise LoadError(error.message) from error
        taken, most = process.memory_bytes, recipe.policy.memory_bytes
        if most and taken > most:
            raise NotLoadable(
                f"isolation.memory_bytes: expected more than the {taken} bytes that the version takes when "
                f"it is loaded, got {most}"
            )
        return found

    def _warmed(self) -> ModelProcess:
        """A new process, with the version loaded and warmed up."""
        self._recipe.which.check()
        process, said, signatures = self._started()
        try:
            self._recipe.warm(_Starting(process, said.platform, signatures, self._recipe))
        except BaseException:
            process.close()
            raise
        return process

    def _ended(self, process: ModelProcess) -> None:
        """A process has ended: called in the thread that kept it."""
        ending = process.ending or Ending("exit", "ended")
        with self._lock:
            if process is not self.process or self._closed.is_set():
                return
            self.process, self._last = None, ending
            self._trouble = f"its process {ending.said}"
            serves = self._serves
        self._on_change()
        if serves:  # else whoever warms it up fails, and says so
            self._replace_soon(ending.reason)

    def _grown(self, process: ModelProcess) -> None:
        """A process takes more memory than it may: called in the thread that keeps it."""
        with self._lock:
            if process is not self.process or not self._serves or self._closed.is_set():
                return
        _log.warning(
            "its process has grown to %d bytes; a new one takes its place",
            process.memory_bytes,
            extra=self._about,
        )
        self._replace_soon("memory")

    def _replace_soon(self, reason: str) -> None:
        with self._lock:
            if self._replacing:  # who does that now looks, when it is done, whether there is one
                return
            self._replacing = True
        name = "{model}/{version} starter".format_map(self._about)
        try:
            threading.Thread(target=self._replace, args=(reason,), name=name, daemon=True).start()
        except RuntimeError:  # there are no more threads: that of the process will do, if it is over
            if self.process is None:
                self._replace(reason)
            else:
                self._replacing = False

    def _replace(self, reason: str) -> None:
        """Start processes until one serves, in a thread of its own."""
        while not self._closed.is_set():
            pause = self._restarts.count(reason)
            self.back_at = time.monotonic() + pause
            if self.process is None:
                lately = self._restarts.lately
                often = f" ({lately} times lately)" if lately > 1 else ""
                said = f"{self._trouble}{often}; the next one is started in {pause:g} s"
                _log.error("%s", said, extra=self._about)
            if self._closed.wait(pause):
                return
            reason = self._try_to_replace()
            with self._lock:
                if not reason and self.process is not None:
                    self._replacing = False
                    return
                reason = reason or self._last.reason  # the new one has ended, too

    def _try_to_replace(self) -> str:
        """Start a process, and let it take over; why it does not, in a word, or ""."""
        try:
            process = self._warmed()
        except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, it is tried again
            said = error.message if isinstance(error, HeadraceError) else type(error).__name__
            self._trouble = f"its process could not be started again: {said}"
            _log.warning("%s", self._trouble, extra=self._about, exc_info=_unexpected(error))
            return "start"
        with self._lock:
            if process.ending is not None:
                self._trouble = f"its new process {process.ending.said} while it was warmed up"
                return process.ending.reason
            before, self.process = self.process, process
            if self._closed.is_set():
                before, self.process = process, None
        self._on_change()
        _log.info("a new process answers", extra=self._about)
        if before is not None:
            before.retire(self._recipe.policy.timeout_seconds)
        return ""


class _Starting:
    """A process that does not serve yet, as a Servable: to be warmed up."""

    def __init__(
        self, process: ModelProcess, platform: str, signatures: Mapping[str, Signature], recipe: Recipe
    ) -> None:
        self.platform, self.signatures = platform, signatures
        self._process, self._recipe = process, recipe

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        write_it = partial(write_call, Kind.PREDICT, signature, inputs)
        try:
            return self._process.call(write_it, read_tensors, self._recipe.batch_limit, self._recipe.ask)
        except Retired as error:
            raise Unavailable("its new process has ended") from error

    def close(self) -> None:
        self._process.close()


def write_call(kind: Kind, signature: str, inputs: Tensors, slot: Slot) -> Note:
    """Put a batch into a slot's area."""
    return slot.layouts.write(slot.area, 0, kind, signature, inputs)


def read_tensors(slot: Slot, note: Note) -> Tensors:
    """Copy the answer to a batch out of a slot's area."""
    if note.kind & KNOWN:
        return {name: view.copy() for name, view in slot.layouts.told[note.offset].tensors.items()}
    head = read_head(slot.area, note)
    tensors = copy_tensors(slot.area.view, head, note)
    slot.layouts.hear(slot.area, head, note)
    return tensors


def _write_load(setup: bytes, slot: Slot) -> Note:
    return write_bytes(slot.area, 0, Kind.LOAD, setup)


def _read_description(slot: Slot, note: Note) -> tuple[Description, Mapping[str, Signature]]:
    head = read_head(slot.area, note)
    return described(head.about, copy_tensors(slot.area.view, head, note))


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, HeadraceError) else error
