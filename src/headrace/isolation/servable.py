"""A version in a process of its own, as a Servable: what is asked of it goes there, and so do its failures.

When its process ends, a new one is loaded in the background; until it is there, batches are refused at once.
A process that has grown too large is replaced by a new one before it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from headrace.config import IsolationPolicy
from headrace.errors import HeadraceError, LoadError, ModelDied, NotLoadable, Unavailable
from headrace.isolation.description import Description, Setup, described
from headrace.isolation.messages import (
    KNOWN,
    Kind,
    Note,
    copy_tensors,
    read_bytes,
    read_head,
    write_bytes,
)
from headrace.isolation.process import ModelProcess, Retired
from headrace.isolation.restarts import MOST_AT_ONCE, Ending, pause_before
from headrace.isolation.slot import Limit, Slot
from headrace.runtimes.options import RuntimeOptions
from headrace.servable import DEFAULT_SIGNATURE, Servable, Signature
from headrace.tensors import Tensors

if TYPE_CHECKING:
    from headrace.ctr.interfaces import Contribution

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_LEAST_RETRY_SECONDS = 0.1
_SWAPS = range(8)


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


class IsolatedServable:
    """A version in a process of its own.

    Attributes:
        platform: The model's.
        signatures: The model's.
        takes_packed: Whether the model takes texts packed.
        metadata: The model's, if it has some.
        restarts: How often its process was started again, by the reason why.
    """

    may_block = True
    """It may hang, so it must not be called in the serving thread."""

    def __init__(
        self,
        which: Which,
        options: RuntimeOptions,
        policy: IsolationPolicy,
        *,
        load_seconds: float,
        longest_pause_seconds: float,
        warm: Callable[[Servable], object] = lambda servable: None,
    ) -> None:
        """Load a version in a new process, in a loader thread.

        Args:
            which: The version.
            options: As for a runtime.
            policy: What the process may take.
            load_seconds: How long loading may take.
            longest_pause_seconds: The longest pause before the process is started again.
            warm: Warms up each process that takes another one's place.

        Raises:
            LoadError: It cannot be loaded, or its process ended over it.
        """
        self._which = which
        self._policy = policy
        self._ask = options.call
        self._setup = msgspec.json.encode(_setup(which, options, policy))
        self._load_limit = Limit(load_seconds, "loading took longer than versions.load_timeout_seconds")
        self._limit = Limit(policy.timeout_seconds, "a batch took longer than isolation.timeout_seconds")
        self._longest_pause_seconds = longest_pause_seconds
        self._warm = warm
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._serves = self._replacing = False
        self._trouble, self._last = "", Ending("exit", "ended")
        self._until = 0.0
        self._loaded_in = 0.0
        self._ends: deque[float] = deque(maxlen=MOST_AT_ONCE)
        self.restarts: Counter[str] = Counter()
        self._process: ModelProcess | None = None
        self._process, said, self.signatures = self._started()
        self.platform = said.platform
        self.takes_packed = said.takes_packed
        self.metadata: Mapping[str, str] = said.metadata
        if said.explains:
            self.explain = self._explain

    # --- what is asked of a Servable ---

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Answer a whole batch.

        Args:
            inputs: Every input, checked.
            signature: Which way to call it.

        Raises:
            ModelDied: The process ended over it.
            Unavailable: There is no process just now.
            HeadraceError: What the model said.
        """
        return self._call(partial(_write, Kind.PREDICT, signature, inputs), _read_tensors)

    def _explain(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> list[list[Contribution]]:
        """What each field adds to each row's logit, of a model that can tell."""
        # Only models that explain themselves need it.
        from headrace.ctr.interfaces import Contribution  # noqa: PLC0415

        said = self._call(partial(_write, Kind.EXPLAIN, signature, inputs), _read_bytes)
        return msgspec.msgpack.decode(said, type=list[list[Contribution]])

    def close(self) -> None:
        """Let the model free what it holds, and end its process."""
        with self._lock:
            self._closed.set()
            process, self._process = self._process, None
        if process is not None:
            process.close()

    # --- what is told of it ---

    @property
    def trouble(self) -> str:
        """Why it does not answer now; "" while it does."""
        return self._away() if self._process is None else ""

    @property
    def memory_bytes(self) -> int:
        """What its process takes of memory that nobody else has."""
        process = self._process
        return 0 if process is None else process.memory_bytes

    def serve(self) -> None:
        """From now on, replace the process when it ends or has grown too large.

        Raises:
            LoadError: It has ended already.
        """
        with self._lock:
            process = self._process
            if process is None or process.ending is not None:
                said = process.ending.said if process is not None and process.ending is not None else "ended"
                raise LoadError(f"its process {said} while it was warmed up")
            self._serves = True

    def _away(self) -> str:
        seconds = self._until - time.monotonic()
        following = f"is started in {seconds:.1f} s" if seconds > 0 else "is being loaded"
        return f"{self._trouble}; a new one {following}"

    # --- calls ---

    def _call(self, write_it: Callable[[Slot], Note], read_it: Callable[[Slot, Note], ResultT]) -> ResultT:
        for _ in _SWAPS:
            process = self._process
            if process is None:
                break
            with suppress(Retired):  # another one has taken its place, or it has just ended
                return process.call(write_it, read_it, self._limit, self._ask)
            if process.ending is not None:
                break
        which = f"{self._which.model} version {self._which.version}"
        after = max(self._until - time.monotonic(), 0.0) + self._loaded_in
        raise Unavailable(
            f"{which}: {self._away()}; try again", retry_after_seconds=max(after, _LEAST_RETRY_SECONDS)
        )

    # --- processes ---

    def _started(self) -> tuple[ModelProcess, Description, Mapping[str, Signature]]:
        """A new process, with the version loaded.

        Raises:
            LoadError: It could not be started, or did not load it.
        """
        about = {"model": self._which.model, "version": self._which.version}
        process = ModelProcess(about, self._policy, self._ended, self._grown)
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
        self._loaded_in = time.monotonic() - began
        return process, said, signatures

    def _loaded_by(self, process: ModelProcess) -> tuple[Description, Mapping[str, Signature]]:
        write_it = partial(_write_bytes, Kind.LOAD, self._setup)
        try:
            found = process.call(write_it, _read_description, self._load_limit, self._ask)
        except (ModelDied, Retired) as error:
            ending = process.ending.said if process.ending is not None else "ended"
            raise LoadError(f"its process {ending} while it loaded the version") from error
        except HeadraceError as error:
            if isinstance(error, LoadError):
                raise
            raise LoadError(error.message) from error
        taken, most = process.memory_bytes, self._policy.memory_bytes
        if most and taken > most:
            raise NotLoadable(
                f"isolation.memory_bytes: expected more than the {taken} bytes that the version takes when "
                f"it is loaded, got {most}"
            )
        return found

    def _ended(self, process: ModelProcess) -> None:
        """A process has ended: called in the thread that kept it."""
        ending = process.ending or Ending("exit", "ended")
        with self._lock:
            if process is not self._process or self._closed.is_set():
                return
            self._process, self._last = None, ending
            self._trouble = f"its process {ending.said}"
            if not self._serves:  # whoever warms it up fails, and says so
                return
        self._replace_soon(ending.reason)

    def _grown(self, process: ModelProcess) -> None:
        """A process takes more memory than it may: called in the thread that keeps it."""
        with self._lock:
            if process is not self._process or not self._serves or self._closed.is_set():
                return
        _log.warning(
            "its process has grown to %d bytes; a new one takes its place",
            process.memory_bytes,
            extra=self._about(),
        )
        self._replace_soon("memory")

    def _about(self) -> dict[str, Any]:
        return {"model": self._which.model, "version": self._which.version}

    def _replace_soon(self, reason: str) -> None:
        with self._lock:
            if self._replacing:  # who does that now looks, when it is done, whether there is one
                return
            self._replacing = True
        name = f"{self._which.model}/{self._which.version} starter"
        try:
            threading.Thread(target=self._replace, args=(reason,), name=name, daemon=True).start()
        except RuntimeError:  # there are no more threads: that of the process will do, if it is over
            if self._process is None:
                self._replace(reason)
            else:
                self._replacing = False

    def _replace(self, reason: str) -> None:
        """Start processes until one serves, in a thread of its own."""
        while not self._closed.is_set():
            now = time.monotonic()
            self._ends.append(now)
            self.restarts[reason] += 1
            pause = pause_before(self._ends, now, self._longest_pause_seconds)
            self._until = now + pause
            if self._process is None:
                often = f" ({len(self._ends)} times lately)" if len(self._ends) > 1 else ""
                said = f"{self._trouble}{often}; the next one is started in {pause:g} s"
                _log.error("%s", said, extra=self._about())
            if self._closed.wait(pause):
                return
            reason = self._try_to_replace()
            with self._lock:
                if not reason and self._process is not None:
                    self._replacing = False
                    return
                reason = reason or self._last.reason  # the new one has ended, too

    def _try_to_replace(self) -> str:
        """Start a process, and let it take over; why it does not, in a word, or ""."""
        process = None
        try:
            self._which.check()
            process, _, _ = self._started()
            self._warm(_Starting(self, process))
        except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, it is tried again
            if process is not None:
                process.close()
            said = error.message if isinstance(error, HeadraceError) else type(error).__name__
            self._trouble = f"its process could not be started again: {said}"
            _log.warning("%s", self._trouble, extra=self._about(), exc_info=_unexpected(error))
            return "start"
        with self._lock:
            if process.ending is not None:
                self._trouble = f"its new process {process.ending.said} while it was warmed up"
                return process.ending.reason
            before, self._process = self._process, process
            if self._closed.is_set():
                before, self._process = process, None
        _log.info("a new process answers", extra=self._about())
        if before is not None:
            before.retire(self._policy.timeout_seconds)
        return ""


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, HeadraceError) else error


def _setup(which: Which, options: RuntimeOptions, policy: IsolationPolicy) -> Setup:
    return Setup(
        path=str(which.path.absolute()),
        kind=options.kind,
        threads=options.threads,
        trusted=options.trusted,
        allow_code=options.allow_code,
        options=dict(options.options),
        signature=options.signature,
        checksums=None if options.checksums is None else dict(options.checksums),
        memory_bytes=policy.memory_bytes,
        log_level=logging.getLogger().getEffectiveLevel(),
        gently=options.threads
        == 1,  # a runtime's threads have the priority of the one that loads it, for good
    )


def _write(kind: Kind, signature: str, inputs: Tensors, slot: Slot) -> Note:
    return slot.layouts.write(slot.area, 0, kind, signature, inputs)


def _write_bytes(kind: Kind, said: bytes, slot: Slot) -> Note:
    return write_bytes(slot.area, 0, kind, said)


def _read_tensors(slot: Slot, note: Note) -> Tensors:
    if note.kind & KNOWN:
        return {name: view.copy() for name, view in slot.layouts.told[note.offset].tensors.items()}
    head = read_head(slot.area, note)
    tensors = copy_tensors(slot.area.view, head, note)
    slot.layouts.hear(slot.area, head, note)
    return tensors


def _read_bytes(slot: Slot, note: Note) -> bytes:
    return read_bytes(slot.area, note)


def _read_description(slot: Slot, note: Note) -> tuple[Description, Mapping[str, Signature]]:
    head = read_head(slot.area, note)
    return described(head.about, copy_tensors(slot.area.view, head, note))


class _Starting:
    """A process that does not serve yet, as a Servable: to be warmed up."""

    def __init__(self, servable: IsolatedServable, process: ModelProcess) -> None:
        self.signatures: Mapping[str, Signature] = servable.signatures
        self.platform = servable.platform
        self._servable, self._process = servable, process

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        servable = self._servable
        write_it = partial(_write, Kind.PREDICT, signature, inputs)
        try:
            return self._process.call(write_it, _read_tensors, servable._limit, servable._ask)
        except Retired as error:
            raise Unavailable("its new process has ended") from error

    def close(self) -> None:
        self._process.close()
