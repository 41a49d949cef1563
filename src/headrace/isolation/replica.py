"""A replica: one process of a version, restarted when necessary.

When its process ends, a new one is loaded in the background. A process that exceeds its memory limit is
replaced by a new one before it is ended.
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

from headrace.base.errors import HeadraceError, LoadError, ModelDied, NotLoadable, Unavailable
from headrace.base.tensors import Tensors
from headrace.config import IsolationPolicy
from headrace.isolation.call_slot import Limit, Slot
from headrace.isolation.messages import (
    KNOWN,
    Kind,
    Note,
    copy_tensors,
    read_head,
    write,
    write_bytes,
)
from headrace.isolation.model_description import ModelDescription, described
from headrace.isolation.model_process import Ask, ModelProcess, Retired
from headrace.isolation.replica_restarts import Ending, Restarts
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Which(NamedTuple):
    """The isolated version.

    Attributes:
        model: The model's name.
        version: The version's number.
        path: The version directory.
        check: Raises LoadError if the files have changed since they were checked before the first start.
    """

    model: str
    version: int
    path: Path
    check: Callable[[], object] = lambda: None


class Recipe(NamedTuple):
    """Parameters of each process of a version.

    Attributes:
        which: The version.
        setup: The encoded ``Setup``.
        policy: The limits.
        ask: Calls another model for this one; None if that is not possible.
        load_limit: Time limit of loading.
        batch_limit: Time limit of a batch.
        warm: Warms up each process except the first one.
        threads: Number of threads of a batch.
    """

    which: Which
    setup: bytes
    policy: IsolationPolicy
    ask: Ask | None
    load_limit: Limit
    batch_limit: Limit
    warm: Callable[[Servable], object]
    threads: int


class Replica:
    """One process of a version, and its replacement.

    Attributes:
        process: The current process; None while there is none.
        back_at: Start of the next process on the monotonic clock.
        loaded_in: Load time of the last process in seconds.
    """

    def __init__(self, recipe: Recipe, restarts: Restarts, on_change: Callable[[], object]) -> None:
        """Create the replica without starting a process.

        Args:
            recipe: Parameters of its processes.
            restarts: Counts the restarts of all replicas of the version.
            on_change: Called in any thread when the process ends, is replaced or is closed.
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
        self._serves_since = 0.0
        self._why_away = "its process ended"

    # --- life ---

    def start(self) -> tuple[ModelDescription, Mapping[str, Signature]]:
        """Load the version in a first process, in a loader thread.

        Returns:
            The version's description, and its signatures by name.

        Raises:
            LoadError: The version cannot be loaded, or its process ended meanwhile.
        """
        self.process, said, signatures = self._start_process()
        return said, signatures

    def start_warm(self) -> None:
        """Load the version in a first process and warm it up, in a loader thread.

        Raises:
            LoadError: The version cannot be loaded or warmed up, or its process ended meanwhile.
        """
        self.process = self._start_warm_process()

    def check(self) -> None:
        """Check that the first process still runs.

        Raises:
            LoadError: The process has ended already.
        """
        process = self.process
        if process is None or process.ending is not None:
            said = process.ending.said if process is not None and process.ending is not None else "ended"
            raise LoadError(f"its process {said} while it was warmed up")

    def serve(self) -> None:
        """Replace the process from now on when it ends or exceeds its memory limit.

        Raises:
            LoadError: The process has ended already.
        """
        with self._lock:
            self.check()
            self._serves, self._serves_since = True, self._restarts.now()

    def close(self) -> None:
        """Close the model, and end the process."""
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
        """Why there is no process, and when the next one starts."""
        seconds = self.back_at - time.monotonic()
        following = f"is started in {seconds:.1f} s" if seconds > 0 else "is being loaded"
        return f"{self._why_away}; a new one {following}"

    def call(self, write_it: Callable[[Slot], Note], read_it: Callable[[Slot, Note], ResultT]) -> ResultT:
        """Send a request to its process; see ``ModelProcess.call``.

        Raises:
            Retired: There is no process that takes calls.
            HeadraceError: The model raised this error, or its process ended during the call.
        """
        while (process := self.process) is not None and process.takes_calls:
            with suppress(Retired):  # it has just been replaced, or has ended
                return process.call(write_it, read_it, self._recipe.batch_limit, self._recipe.ask)
        raise Retired

    # --- processes ---

    def _start_process(self) -> tuple[ModelProcess, ModelDescription, Mapping[str, Signature]]:
        """Start a process, and load the version in it.

        Raises:
            LoadError: The process could not be started, or could not load the version.
        """
        process = ModelProcess(
            self._about, self._recipe.policy, self._recipe.threads, self._on_ended, self._on_grown
        )
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

    def _loaded_by(self, process: ModelProcess) -> tuple[ModelDescription, Mapping[str, Signature]]:
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

    def _start_warm_process(self) -> ModelProcess:
        """Start a process, load the version in it, and warm it up."""
        self._recipe.which.check()
        process, said, signatures = self._start_process()
        try:
            self._recipe.warm(_Starting(process, said.platform, signatures, self._recipe))
        except BaseException:
            process.close()
            raise
        return process

    def _on_ended(self, process: ModelProcess) -> None:
        """Handle the end of a process, in its watcher thread."""
        ending = process.ending or Ending("exit", "ended")
        with self._lock:
            if process is not self.process or self._closed.is_set():
                return
            self.process = None
            self._why_away = f"its process {ending.said}"
            serves = self._serves
        self._on_change()
        if serves:  # otherwise its warm-up fails and reports the error
            self._replace_in_background(partial(self._restarts.count, ending.reason))

    def _on_grown(self, process: ModelProcess) -> bool:
        """Start to replace a process that exceeds its memory limit, in its watcher thread.

        Return whether a replacement was started: not before the process serves, nor while another one runs.
        """
        with self._lock:
            if process is not self.process or not self._serves or self._closed.is_set():
                return False
            served_seconds = self._restarts.now() - self._serves_since
        if not self._replace_in_background(partial(self._restarts.count_grown, served_seconds)):
            return False
        _log.warning(
            "its process has grown to %d bytes; a new one takes its place",
            process.memory_bytes,
            extra=self._about,
        )
        return True

    def _replace_in_background(self, count: Callable[[], float]) -> bool:
        """Start to replace the process in the background; return whether that was possible.

        Args:
            count: Counts the restart, and returns the pause before it.
        """
        with self._lock:
            if self._replacing:  # the new process also replaces one that has ended meanwhile
                return False
            self._replacing = True
        name = "{model}/{version} starter".format_map(self._about)
        try:
            threading.Thread(target=self._replace, args=(count,), name=name, daemon=True).start()
        except RuntimeError:  # no thread: use this watcher thread if its process has ended
            if self.process is None:
                self._replace(count)
                return True
            self._replacing = False
            return False
        return True

    def _replace(self, count: Callable[[], float]) -> None:
        """Start processes until one serves, in a thread of its own, or in the watcher thread."""
        while not self._closed.is_set():
            pause = count()
            self.back_at = time.monotonic() + pause
            if self.process is None:
                lately = self._restarts.lately
                often = f" ({lately} times lately)" if lately > 1 else ""
                said = f"{self._why_away}{often}; the next one is started in {pause:g} s"
                _log.error("%s", said, extra=self._about)
            if self._closed.wait(pause):
                return
            reason = self._try_to_replace()
            if not reason:
                return
            count = partial(self._restarts.count, reason)

    def _try_to_replace(self) -> str:
        """Start a process and switch to it; return the reason for a failure, "" for success."""
        try:
            process = self._start_warm_process()
        except Exception as error:  # noqa: BLE001 - any failure is retried
            said = error.message if isinstance(error, HeadraceError) else type(error).__name__
            self._why_away = f"its process could not be started again: {said}"
            _log.warning("%s", self._why_away, extra=self._about, exc_info=_unexpected(error))
            return "start"
        with self._lock:
            if process.ending is not None:
                self._why_away = f"its new process {process.ending.said} while it was warmed up"
                return process.ending.reason
            before, self.process = self.process, process
            self._serves_since = self._restarts.now()
            if self._closed.is_set():
                before, self.process = process, None
            self._replacing = False  # its end now starts another replacement, even while `before` is retired
        self._on_change()
        _log.info("a new process answers", extra=self._about)
        if before is not None:
            before.retire(self._recipe.policy.timeout_seconds)
        return ""


class _Starting:
    """A Servable for the warm-up of a process that does not serve yet."""

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
    """Write a batch to a slot's area; only layouts for ``predict`` are kept."""
    if kind != Kind.PREDICT:
        return write(slot.area, 0, kind, signature, inputs)[0]
    return slot.layouts.write(slot.area, 0, kind, signature, inputs)


def read_tensors(slot: Slot, note: Note) -> Tensors:
    """Return a copy of the answer in a slot's area."""
    if note.kind & KNOWN:
        return {name: view.copy() for name, view in slot.layouts.told[note.offset].tensors.items()}
    head = read_head(slot.area, note)
    tensors = copy_tensors(slot.area.view, head, note)
    slot.layouts.hear(slot.area, head, note)
    return tensors


def _write_load(setup: bytes, slot: Slot) -> Note:
    return write_bytes(slot.area, 0, Kind.LOAD, setup)


def _read_description(slot: Slot, note: Note) -> tuple[ModelDescription, Mapping[str, Signature]]:
    head = read_head(slot.area, note)
    return described(head.about, copy_tensors(slot.area.view, head, note))


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, HeadraceError) else error
