"""The keeper: a process that makes sealed copies of files once, and hands them to all processes that ask.

It opens no files. A request carries a descriptor of the file that the client has opened, so a rename of the
file does not matter. A copy is identified by its checksum, or else by the file's identity and state. It is
dropped when every process that received it has closed its socket.

``KeeperProcess`` starts it, and restarts it when it has ended; it ends when all client ends are closed.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import queue
import selectors
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import msgspec

from headrace.base import clock, logs
from headrace.base.cpus import NICER_BY
from headrace.base.files import FileState, state_of
from headrace.sealed_memory import keeper_client
from headrace.sealed_memory.copies import SealedCopy
from headrace.sealed_memory.file_copying import Content, NotCopied, Refusal, make_copy, pieces
from headrace.sealed_memory.keeper_client import Copied, Digested, Question, Reply, Working

_log = logging.getLogger(__name__)

_WORKERS = 4
_MOST_DESCRIPTORS = 3
_TELL_SECONDS = 1.0
_CHECKSUMS_KEPT = 4096
_SETTLED_MILLISECONDS = 500  # two writes within one clock tick, at most 10 ms, leave the same timestamp


class _Unwanted(Exception):
    """All processes that waited for the work have gone."""


@dataclass(eq=False)
class _Job:
    """The content of one file: in progress, or made and held.

    Attributes:
        key: Its key among the jobs.
        question: The first request for it.
        content: The expected content of the file.
        files: Descriptors of the file, and of the patch if there is one; empty when the work is done.
        state: State of the file when the request came.
        is_kept: Whether to remember the checksum.
        lifelines: Sockets of the processes that wait for it, or hold it.
        others: Files with the same expected content from other requests, by socket.
        result: The last reply; None while work is in progress.
        copy: The copy, if one was made.
    """

    key: Hashable
    question: Question
    content: Content
    files: list[int]
    state: FileState
    is_kept: bool
    lifelines: set[socket.socket] = field(default_factory=set)
    others: dict[socket.socket, list[int]] = field(default_factory=dict)
    result: Reply | None = None
    copy: SealedCopy | None = None


class Keeper:
    """The loop that receives requests and answers them; threads beside it do the copying."""

    def __init__(self, client: socket.socket) -> None:
        """Prepare; ``run`` serves.

        Args:
            client: The socket that receives requests.
        """
        self._client = client
        self._selector = selectors.DefaultSelector()
        self._jobs: dict[Hashable, _Job] = {}
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._woken, self._wake = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._checksums: dict[Hashable, str] = {}
        self._moved_bytes = 0

    def run(self) -> None:
        """Serve until all client ends are closed."""
        self._selector.register(self._client, selectors.EVENT_READ, self._receive)
        self._selector.register(self._woken, selectors.EVENT_READ, self._finish)
        for _ in range(_WORKERS):
            threading.Thread(target=self._work, daemon=True).start()
        told_bytes, told, is_open = 0, 0.0, True
        while is_open:
            is_working = any(job.result is None for job in self._jobs.values())
            for key, _ in self._selector.select(_TELL_SECONDS if is_working else None):
                is_open &= key.data() is not False
            if self._moved_bytes != told_bytes and time.monotonic() - told >= _TELL_SECONDS:
                told_bytes, told = self._moved_bytes, time.monotonic()
                self._report_progress()
        for _ in range(_WORKERS):
            self._waiting.put(None)

    # ---- in the loop's thread ----

    def _receive(self) -> bool:
        """Receive a request; return False when all client ends are closed."""
        try:
            received = keeper_client.receive(self._client, _MOST_DESCRIPTORS)
        except BlockingIOError:
            return True
        except (
            OSError
        ) as error:  # out of descriptors: the client sees its socket closed, and makes its own copy
            _log.warning("could not receive a request: %s", error.strerror)
            return True
        if received is None:
            return False
        content, descriptors = received
        question = keeper_client.question(content)
        if question is None or not _has_descriptors(question, descriptors):
            keeper_client.close(descriptors)
            return True
        self._handle_request(question, descriptors[1:], socket.socket(fileno=descriptors[0]))
        return True

    def _handle_request(self, question: Question, files: list[int], lifeline: socket.socket) -> None:
        status = os.fstat(files[0])
        key, is_settled = _key(question, status), _is_settled(status)
        if key in self._checksums:
            keeper_client.close(files)
            self._send(Digested(self._checksums[key]), lifeline)
            lifeline.close()
            return
        job, state = self._jobs.get(key), state_of(status)
        if job is None:
            is_kept = question.wanted == "checksum" and is_settled
            job = self._jobs[key] = _Job(key, question, question.content, files, state, is_kept)
            job.lifelines.add(lifeline)  # before a thread gets the job: it drops one without lifelines
            self._begin_with_copy(job, status)
            self._waiting.put(job)
        else:
            job.lifelines.add(lifeline)
            if job.files and state != job.state:
                job.others[lifeline] = files  # a fallback if the first file is damaged
            else:
                keeper_client.close(files)
        self._selector.register(lifeline, selectors.EVENT_READ, lambda: self._leave(job, lifeline))
        if not job.files:  # done: hand it on here; ``_finish`` hands on work in progress
            self._send_result(job, lifeline)

    def _begin_with_copy(self, job: _Job, status: os.stat_result) -> None:
        """Use an existing copy as a patch's base: it has been checked already."""
        patch = job.content.patch
        if patch is None:
            return
        whole = Question(keeper_client.FORMAT, "copy", msgspec.structs.replace(job.content, patch=None))
        base = self._jobs.get(_key(whole, status))
        if base is not None and base.copy is not None:
            os.close(job.files[0])
            job.files[0] = os.dup(base.copy.descriptor)
            job.content = Content(job.content.size_bytes, patch=patch)

    def _finish(self) -> None:
        """Answer the requests for one job that a thread has completed."""
        self._woken.recv(1)
        job = self._done.get()
        keeper_client.close(job.files)
        job.files = []
        if not job.lifelines:
            self._forget(job)
            return
        if isinstance(job.result, Digested) and job.is_kept:
            self._checksums[job.key] = job.result.checksum
            if len(self._checksums) > _CHECKSUMS_KEPT:
                del self._checksums[next(iter(self._checksums))]
        others = self._others_of_refused(job)
        for lifeline in list(job.lifelines):
            self._send_result(job, lifeline)
            if job.copy is None:
                self._leave(job, lifeline)
        if others:
            self._forget(job)
        for lifeline, files in others.items():
            self._handle_request(job.question, files, lifeline)

    def _others_of_refused(self, job: _Job) -> dict[socket.socket, list[int]]:
        """Return the clients whose own files are tried next, because the job's file was refused."""
        others, job.others = job.others, {}
        if not isinstance(job.result, Refusal):
            for files in others.values():
                keeper_client.close(files)
            return {}
        for lifeline in others:
            job.lifelines.discard(lifeline)
            self._selector.unregister(lifeline)
        return others

    def _send_result(self, job: _Job, lifeline: socket.socket) -> None:
        if job.result is not None:
            descriptors = [] if job.copy is None else [job.copy.descriptor]
            if not self._send(job.result, lifeline, *descriptors):
                self._leave(job, lifeline)

    def _leave(self, job: _Job, lifeline: socket.socket) -> None:
        """Remove a process that has left or needs nothing more; drop the copy with the last one."""
        if lifeline in job.lifelines:
            job.lifelines.discard(lifeline)
            keeper_client.close(job.others.pop(lifeline, []))
            self._selector.unregister(lifeline)
            lifeline.close()
            if not job.lifelines:
                self._forget(job)

    def _forget(self, job: _Job) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        job.copy = None

    def _report_progress(self) -> None:
        for job in list(self._jobs.values()):
            if job.result is None:
                for lifeline in list(job.lifelines):
                    self._send(Working(), lifeline)

    def _send(self, reply: Reply, lifeline: socket.socket, *descriptors: int) -> bool:
        try:
            keeper_client.send(lifeline, reply, *descriptors)
        except OSError:  # the client has ended, or does not read
            return False
        return True

    # ---- in threads ----

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            result, copy = self._result(job)
            job.copy, job.result = copy, result
            del copy
            self._done.put(job)
            del job
            self._wake.send(b"!")

    def _result(self, job: _Job) -> tuple[Reply, SealedCopy | None]:
        def between(size_bytes: int) -> None:
            self._moved_bytes += size_bytes
            if not job.lifelines:
                raise _Unwanted

        try:
            if job.question.wanted == "checksum":
                return Digested(_digest(job.files[0], job.content, between)), None
            return Copied(), make_copy(job.files[0], job.content, between, job.files[-1])
        except NotCopied as error:
            return error.refusal, None
        except _Unwanted:
            return Refusal("system", errno=errno.ECANCELED, said=os.strerror(errno.ECANCELED)), None
        except MemoryError:
            return Refusal("system", errno=errno.ENOMEM, said=os.strerror(errno.ENOMEM)), None
        except OSError as error:
            said = error.strerror or str(error)
            return Refusal("system", errno=error.errno or errno.EIO, said=said), None
        except Exception as error:  # noqa: BLE001 - a thread boundary: other files wait for this thread
            _log.exception("processing a file failed")
            return Refusal("system", errno=errno.EIO, said=type(error).__name__), None


def _digest(file: int, content: Content, between: Callable[[int], object]) -> str:
    digest = hashlib.sha256()
    for piece in pieces(file, content):
        digest.update(piece)
        between(len(piece))
    return digest.hexdigest()


def _key(question: Question, status: os.stat_result) -> Hashable:
    """Return the key of a content: its checksum, or the file's identity and state."""
    content = question.content
    if content.checksum is not None:
        return question.wanted, content
    return question.wanted, content, state_of(status)


def _is_settled(status: os.stat_result) -> bool:
    """Return whether any further change of the file will change its timestamp."""
    return clock.unix_milliseconds() - status.st_ctime_ns // 10**6 > _SETTLED_MILLISECONDS


def _has_descriptors(question: Question, descriptors: list[int]) -> bool:
    """Return whether a request has its descriptors: a socket, a file, and the patch's rows if it has one."""
    count = 2 if question.content.patch is None else 3
    if len(descriptors) != count or (question.wanted == "checksum" and count > 2):
        return False
    is_socket, *are_files = (os.fstat(one).st_mode for one in descriptors)
    return stat.S_ISSOCK(is_socket) and all(map(stat.S_ISREG, are_files))


def main() -> None:
    """Run a keeper; the arguments are the socket's descriptor, and the format and level of the log."""
    descriptor, style, level = sys.argv[1:]
    logs.set_up("json" if style == "json" else "text", level, serves=True)
    # The keeper ends with its last client; these signals are meant for the clients.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICER_BY)  # like loader threads: requests have priority
    Keeper(socket.socket(fileno=int(descriptor))).run()


_AGAIN_SECONDS = 1.0
_END_SECONDS = 5.0


class KeeperProcess:
    """A keeper's process, with both ends of its socket, so that pending requests survive a restart.

    The keeper ends when all client ends are closed, and thus with its last client, even if that crashes.

    Attributes:
        descriptor: The client end, for ``use_keeper`` in each process that it is passed to.
    """

    def __init__(self, log_format: str = "text", log_level: str = "info") -> None:
        """Start the process.

        Args:
            log_format: Format of its log, on this process's standard error: text or json.
            log_level: Minimum level of its log.

        Raises:
            OSError: The process cannot be started.
        """
        self._server_end, self._client_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.descriptor = self._client_end.fileno()
        self._command = [
            *(sys.executable, "-m", "headrace.sealed_memory.keeper", str(self._server_end.fileno())),
            *(log_format, log_level),
        ]
        self._started = time.monotonic()
        try:
            self._process = self._start()
        except OSError:
            self._server_end.close()
            self._client_end.close()
            raise

    @property
    def pid(self) -> int:
        """The process id of the keeper."""
        return self._process.pid

    def look_after(self) -> None:
        """Restart the keeper if it has ended; never blocks. Call this about once a second."""
        ended = self._process.poll()
        if ended is None or time.monotonic() - self._started < _AGAIN_SECONDS:
            return
        _log.warning("the keeper of shared memory has ended (%d) and is started again", ended)
        self._started = time.monotonic()
        try:
            self._process = self._start()
        except OSError as error:
            _log.warning("the keeper of shared memory cannot be started: %s", error.strerror)

    def close(self) -> None:
        """Kill the keeper, even if it still has clients. Copies remain with the processes that hold them."""
        self._server_end.close()
        self._client_end.close()
        self._process.kill()
        self._process.wait(_END_SECONDS)

    def _start(self) -> subprocess.Popen[bytes]:
        server_end = self._server_end.fileno()
        return subprocess.Popen(self._command, pass_fds=[server_end], stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
