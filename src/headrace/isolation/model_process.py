"""Start, call, watch and end a model's process, from the server's side.

Each process has a watcher thread, which starts it (and whose end kills it), reads its output, and checks for
calls that exceed their timeout and for growing memory. Calls may come from any thread.
Each call uses a slot exclusively: two pipes and an area of shared memory. A new slot is created if all are in
use.

When the process has ended, the watcher writes ``DIED`` into the pipe of each waiting call. Calling threads
therefore need no timeouts and never wait for an answer that cannot come.

The process leads a process group, which programs that it starts belong to as well. It is reaped last: until
then no other group can get its id.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace.base import cpus
from headrace.base.errors import HeadraceError, ModelDied, ModelError, Unavailable
from headrace.base.tensors import Tensors
from headrace.config import IsolationPolicy
from headrace.isolation.call_slot import Limit, Slot
from headrace.isolation.messages import (
    CLOSE,
    KNOWN,
    NEW_SLOT,
    RELEASE,
    Kind,
    Note,
    copy_tensors,
    error_of,
    failure_of,
    read_bytes,
    read_head,
    start_of,
    write,
    write_bytes,
)
from headrace.isolation.output_log import Output
from headrace.isolation.replica_restarts import Ending, ending_of
from headrace.isolation.shared_area import Area

_log = logging.getLogger(__name__)

_LONGEST_TICK_SECONDS, _SHORTEST_TICK_SECONDS, _MEMORY_TICK_SECONDS = 1.0, 0.02, 0.25
_TICKS_A_TIMEOUT = 8
_KEPT_AREA_BYTES = 64 * 1024 * 1024
_HARD_LIMIT_TIMES = 1.5
_DYING_SECONDS = 2.0
_REST_SECONDS = 1.0
_CLOSE_SECONDS = 10.0
_PAGE = os.sysconf("SC_PAGESIZE")
GARBAGE = (ValueError, TypeError, KeyError, OverflowError, BufferError, msgspec.MsgspecError)

ResultT = TypeVar("ResultT")
Ask = Callable[[str, Tensors], Tensors]

_POLL_SECONDS = 0.01


class Retired(Exception):
    """This process takes no more calls; nothing was sent to it."""


class ModelProcess:
    """A model's process.

    Attributes:
        ending: How it ended; None while it runs.
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        policy: IsolationPolicy,
        threads: int,
        on_end: Callable[[ModelProcess], object],
        on_large: Callable[[ModelProcess], bool],
    ) -> None:
        """Create the object without starting a process.

        Args:
            about: The model and the version, for the log.
            policy: The limits.
            threads: Number of threads that its numeric libraries start.
            on_end: Called in the watcher thread when the process has ended.
            on_large: Called in the watcher thread while the process exceeds its memory limit, at each check
                until it returns True, because a replacement has begun.
        """
        self.ending: Ending | None = None
        self._about = dict(about)
        self._policy = policy
        self._threads = threads
        self._on_end = on_end
        self._on_large = on_large
        self._is_replaced = False
        self._lock = threading.Lock()
        self._idle: list[Slot] = []
        self._busy: set[Slot] = set()
        self._retired = False
        self._killed_for: Ending | None = None
        self._has_been_reaped = threading.Event()
        self._all_back = threading.Condition(self._lock)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    # --- life ---

    def start(self) -> None:
        """Start the process, without loading anything.

        Raises:
            OSError: The system refuses to start a process.
            RuntimeError: The system refuses to start the watcher thread.
        """
        started: Future[None] = Future()
        name = "{model}/{version} watcher".format_map(self._about)
        threading.Thread(target=self._watch_process, args=(started,), name=name, daemon=True).start()
        started.result()

    @property
    def takes_calls(self) -> bool:
        """Whether it takes calls: False once it is retired or has ended."""
        return not self._retired and self.ending is None

    @property
    def memory_bytes(self) -> int:
        """Unshared resident memory of the process in bytes; 0 when it has ended."""
        process = self._process
        if process is None or self.ending is not None:
            return 0
        try:
            told = Path(f"/proc/{process.pid}/statm").read_text().split()
        except OSError:
            return 0
        return (int(told[1]) - int(told[2])) * _PAGE

    def kill(self, ending: Ending) -> None:
        """Kill the process.

        Args:
            ending: The reason; ignored if there is one already.
        """
        with self._lock:
            self._killed_for = self._killed_for or ending
            if self._process is not None:
                _kill(self._process)  # its watcher then ends the programs that it has started

    def retire(self, most_seconds: float) -> None:
        """Take no more calls, wait for those that run, and close the process.

        Args:
            most_seconds: Longest wait for running calls in seconds.
        """
        with self._lock:
            self._retired = True
            self._all_back.wait_for(lambda: not self._busy, most_seconds)
        self.close()

    def close(self) -> None:
        """Close the model, and end the process; kill it if it does not end in time."""
        with self._lock:
            self._retired = True
            self._killed_for = self._killed_for or Ending("closed", "was closed")
            if self._control is not None and self.ending is None:
                with suppress(OSError):
                    self._control.send(NEW_SLOT.pack(CLOSE, 0))
        if not self._has_been_reaped.wait(_CLOSE_SECONDS):
            _log.warning("its process does not end by itself; it is killed", extra=self._about)
            self.kill(Ending("closed", "was closed"))
            self._has_been_reaped.wait(_CLOSE_SECONDS)

    # --- calls ---

    def call(
        self,
        write_it: Callable[[Slot], Note],
        read_it: Callable[[Slot, Note], ResultT],
        limit: Limit,
        ask: Ask | None,
    ) -> ResultT:
        """Send a request to the model's process, and wait for the answer.

        Args:
            write_it: Writes the request to a slot's area.
            read_it: Reads the answer from there.
            limit: Time limit after which the process is killed.
            ask: Calls another model for this one; None if that is not possible.

        Raises:
            Retired: The process takes no more calls; use another one.
            ModelDied: The process ended during the call.
            HeadraceError: The model raised this error, or there was no memory for the call.
        """
        slot = self._take(limit)
        try:
            return self._answered(slot, write_it(slot), read_it, ask)
        finally:
            self._give_back(slot)

    def _answered(
        self, slot: Slot, note: Note, read_it: Callable[[Slot, Note], ResultT], ask: Ask | None
    ) -> ResultT:
        try:
            answer = slot.exchange(note)
            while answer.kind == Kind.CALL:
                slot.is_asking = True  # the model waits: without a reply, the slot must not be used again
                answer = slot.exchange(_call_other_model(slot.area, answer, ask))
            if answer.kind & ~KNOWN == Kind.ANSWER:
                return read_it(slot, answer)
            if answer.kind == Kind.DIED:
                raise self._died()
            if answer.kind != Kind.FAILURE:
                raise ValueError(f"a message of kind {answer.kind}")
            failure = error_of(read_bytes(slot.area, answer))
        except (OSError, MemoryError) as error:
            raise Unavailable(
                "there is no memory for the answer of the model's process; try again"
            ) from error
        except GARBAGE as error:
            self.kill(Ending("protocol", "was ended because its answer was malformed"))
            raise ModelError("the model's process sent a malformed answer, and is replaced") from error
        raise failure

    def _died(self) -> ModelDied:
        said = self.ending.said if self.ending is not None else "ended"
        which = "{model} version {version}".format_map(self._about)
        return ModelDied(f"{which}: its process {said} while it computed this request")

    def _take(self, limit: Limit) -> Slot:
        with self._lock:
            if self._retired or self.ending is not None or self._control is None:
                raise Retired
            slot = self._idle.pop() if self._idle else None
            if slot is None:
                name = "headrace {model}/{version}".format_map(self._about)
                try:
                    slot = Slot(self._control, name, self._policy.shared_bytes)
                except (BrokenPipeError, ConnectionResetError) as error:  # the process is ending
                    self._retired = True
                    raise Retired from error
                except OSError as error:
                    said = f"cannot set up a call to the model's process: {error.strerror}; try again"
                    raise Unavailable(said) from error
            slot.due, slot.limit = time.monotonic() + limit.seconds, limit
            self._busy.add(slot)
            return slot

    def _give_back(self, slot: Slot) -> None:
        with self._lock:
            self._busy.discard(slot)
            spoiled = slot.is_spoiled or slot.is_asking or slot.area.size > _KEPT_AREA_BYTES
            if spoiled or self.ending is not None:
                slot.close()
            else:
                self._idle.append(slot)
            if not self._busy:
                self._all_back.notify_all()

    # --- the watcher thread ---

    def _watch_process(self, started: Future[None]) -> None:
        try:
            self._spawn()
        except BaseException as error:  # noqa: BLE001  # raised in the waiting thread
            started.set_exception(error)
            return
        started.set_result(None)
        try:
            self._watch()
        except Exception:  # noqa: BLE001 - waiting calls must be woken all the same
            _log.exception("watching a model's process failed", extra=self._about)
        try:
            self._reap()
        finally:
            self._has_been_reaped.set()
            self._on_end(self)

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable,
            "-P",
            "-m",
            "headrace.isolation.child",
            str(theirs.fileno()),
            str(os.getpid()),
            RELEASE,
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                env={
                    **cpus.environment(self._threads),
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)  # a hung process reads no orders: never block on it while holding the lock
        self._control = ours

    def _watch(self) -> None:
        process, control = self._process, self._control
        if process is None or control is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("nothing was started")
        outputs = {
            pipe.fileno(): Output(pipe.fileno(), level, self._about)
            for pipe, level in ((process.stdout, logging.INFO), (process.stderr, logging.WARNING))
        }
        poll = select.poll()
        for fd in (control.fileno(), *outputs):
            poll.register(fd, select.POLLIN)
        tick = self._tick_seconds()
        while not _has_ended(process):
            for fd, _ in poll.poll(tick * 1000):
                if fd == control.fileno():  # it never sends anything here, so it is ending
                    _wait_for_end(process, _DYING_SECONDS)
                    _kill(process)
                elif not outputs[fd].read():
                    poll.unregister(fd)
            self._look(time.monotonic())
        _signal_group(process, signal.SIGTERM)
        _read_rest(outputs)

    def _tick_seconds(self) -> float:
        longest = _MEMORY_TICK_SECONDS if self._policy.memory_bytes else _LONGEST_TICK_SECONDS
        return max(_SHORTEST_TICK_SECONDS, min(longest, self._policy.timeout_seconds / _TICKS_A_TIMEOUT))

    def _look(self, now: float) -> None:
        """Kill the process at a call's timeout or at the hard memory limit; report the soft memory limit."""
        with self._lock:
            late = next((slot.limit for slot in self._busy if slot.due <= now), None)
        if late is not None:
            self.kill(Ending("hang", f"was ended because {late.said} = {late.seconds:g}"))
        limit_bytes = self._policy.memory_bytes
        if not limit_bytes:
            return
        taken = self.memory_bytes
        if taken > limit_bytes * _HARD_LIMIT_TIMES:
            limit = f"isolation.memory_bytes = {limit_bytes}"
            said = f"was ended because it took {taken} bytes, far more than {limit}"
            self.kill(Ending("memory", said))
        elif taken > limit_bytes and not self._is_replaced:
            self._is_replaced = self._on_large(self)

    def _reap(self) -> None:
        process = self._process
        if process is None:
            raise RuntimeError("nothing was started")
        _signal_group(process, signal.SIGKILL)
        _wait_for_end(process, math.inf)
        with self._lock:  # no thread may signal the group once its id can be reused
            code = process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        with self._lock:
            self.ending = self._killed_for or ending_of(code)
            if self._control is not None:
                self._control.close()
                self._control = None
            for slot in self._busy:
                slot.tell_end()
            for slot in self._idle:
                slot.close()
            self._idle.clear()


def _read_rest(outputs: dict[int, Output]) -> None:
    """Read the output of a process that has ended, and of the programs that it has started.

    They have received SIGTERM. Multiprocessing's resource tracker ignores it, and removes the shared memory
    that the process has left. The wait is bounded, because a program may keep the pipes open.
    """
    poll = select.poll()
    for fd in outputs:
        poll.register(fd, select.POLLIN)
    left, until = set(outputs), time.monotonic() + _REST_SECONDS
    while left and (seconds := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(seconds * 1000):
            if not outputs[fd].read():
                poll.unregister(fd)
                left.discard(fd)
    for output in outputs.values():
        output.end()


def _call_other_model(area: Area, note: Note, ask: Ask | None) -> Note:
    """Call another model on behalf of this one, and write its answer or error to the area."""
    head = read_head(area, note)
    inputs = copy_tensors(area.view, head, note)
    floor = start_of(note) + sum(piece.size + 64 for piece in head.pieces)
    try:
        if ask is None:
            raise ModelError(
                f"cannot call {head.about!r}: this model was loaded outside of a server or engine"
            )
        return write(area, floor, Kind.ANSWER, "", ask(head.about, inputs))[0]
    except Exception as error:  # noqa: BLE001  # the other model's error is the answer
        if not isinstance(error, HeadraceError):
            _log.error("the call of another model raised an unexpected error", exc_info=error)
        return write_bytes(area, floor, Kind.FAILURE, failure_of(error))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, without reaping it as ``poll`` does."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # the system reaps it: SIGCHLD is ignored
        return True


def _wait_for_end(process: subprocess.Popen[bytes], most_seconds: float) -> None:
    """Wait at most so many seconds until a process has ended, without reaping it."""
    until = time.monotonic() + most_seconds
    while not _has_ended(process) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process unless it was reaped, without reaping it as ``Popen.kill`` may do."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process and the programs that it has started, unless it was reaped."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):  # all that are left run as other users
            os.killpg(process.pid, number)
