"""The ArchiveService, which the archive's codecs call; nothing here blocks the serving thread for long."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from headrace.access.caller import ASKING
from headrace.access.permissions import check_admin
from headrace.archive.lookup.archive import DEFAULT_TIMEOUT_SECONDS, Archive
from headrace.archive.lookup.space_reader import Lookup, SpaceReader
from headrace.archive.model.columns import described
from headrace.archive.model.keys import SLICE_LETTERS, checked, in_slices, letters
from headrace.base.errors import (
    DeadlineExceeded,
    NotFound,
    Overloaded,
    TooLarge,
)
from headrace.base.tensors import Array
from headrace.batching.request import NO_DEADLINE
from headrace.frontends.wire.request_budget import RequestBudget

if TYPE_CHECKING:
    from headrace.config import Limits
    from headrace.frontends.calls import Budget, Call
    from headrace.frontends.wire.time_slicer import TimeSlicer

Rest = ParamSpec("Rest")
Found = TypeVar("Found")


def spaces(archive: Archive, space: str = "") -> list[dict[str, object]]:
    """Describe spaces, with the field names of the message ``Space``.

    Args:
        archive: The archive.
        space: Name of the space; "" for all.

    Raises:
        NotFound: There is no such space.
    """
    return [_described(archive, name) for name in ([space] if space else archive.config.spaces)]


def _described(archive: Archive, space: str) -> dict[str, object]:
    record = archive.record(space)
    settings, counts = archive.config.spaces[space], archive.counts[space]
    return {
        "name": space,
        "default_version": record.default,
        "versions": [
            {
                "version": one.number,
                "dimension": one.dimension,
                "dtype": one.dtype,
                "answered": one.dtype if one.columns else one.form.answered.name,
                "embedder": one.embedder,
                "fingerprint": one.fingerprint,
                "is_full": one.is_full,
                "created_seconds": one.created,
                "columns": described(one.columns),
            }
            for one in record.versions
        ],
        "max_keys": settings.max_keys,
        "max_key_bytes": settings.max_key_bytes,
        "counts": {
            "lookups": counts.lookups,
            "keys": counts.keys,
            "cached": counts.cached,
            "stored": counts.stored,
            "missing": counts.missing,
        },
    }


_AT_ONCE_KEYS = 256
_AT_ONCE_BYTES = 256 * 1024
_UNCOUNTED_BYTES = 64 * 1024
_THREADS = 4
_MOST_WAITING = 64
_LONGEST_SECONDS = 30.0
_LONGEST_CALLER = 200
# Part of the caller's time that is kept for the answer itself, as one after the deadline is worthless.
_TO_ANSWER_SECONDS, _TO_ANSWER_SHARE = 0.005, 0.1
CALLER_HEADER = b"headrace-caller"
"""The header, or the key of metadata, that holds the caller's name for quotas."""


Values = Array | Mapping[str, Array]
"""Vectors, or the values of columns by name."""


class ArchiveService:
    """The archive as clients reach it over the network. Serving thread only.

    Attributes:
        archive: The archive.
        answering: Finds the reader that answers a lookup, by space and version; see ``Archive.answering``.
        reader: Finds the reader of a space version; see ``Archive.reader``.
        limits: Limits on the cost of a request.
        slicer: Runs long lookups and decodes large bodies in slices.
        is_admin: Whether clients may invalidate and forget.
        most_keys: Largest number of keys in one request to any space.
        longest_key: Length of the longest key of any space, in bytes of UTF-8.
    """

    def __init__(self, archive: Archive, limits: Limits, slicer: TimeSlicer, *, is_admin: bool) -> None:
        """Serve an archive.

        Args:
            archive: The archive; the caller closes it after this.
            limits: Limits on the cost of a request.
            slicer: The server's time slicer.
            is_admin: Whether clients may invalidate and forget.
        """
        self.archive, self.limits, self.slicer, self.is_admin = archive, limits, slicer, is_admin
        # Assigned rather than wrapped: every lookup calls these.
        self.answering, self.reader = archive.answering, archive.reader
        self.most_keys = max(space.max_keys for space in archive.config.spaces.values())
        self.longest_key = max(space.max_key_bytes for space in archive.config.spaces.values())
        self._threads = ThreadPoolExecutor(_THREADS, "archive-service")
        self._working = 0

    def close(self) -> None:
        """End the threads, after waiting for their current work."""
        self._threads.shutdown(cancel_futures=True)

    def described(self, space: str = "") -> list[dict[str, object]]:
        """Describe spaces; see ``spaces``."""
        return spaces(self.archive, space)

    # --- looking up ---

    def quick(self, reader: SpaceReader, keys: list[str], call: Call) -> Lookup | None:
        """Look up few keys without waiting.

        Args:
            reader: Reader of the space version.
            keys: The keys.
            call: The call that asks for them.

        Returns:
            The result, which may have ``waits``; None if there are too many keys and ``lookup`` is needed.

        Raises:
            InvalidRequest: A key is invalid, or there are too many.
        """
        count = len(keys)
        if count > _AT_ONCE_KEYS or count * reader.version.dimension * 4 > _AT_ONCE_BYTES:
            return None
        return reader.begin(keys, _caller(reader, call))

    async def lookup(
        self,
        reader: SpaceReader,
        keys: list[str],
        call: Call,
        timeout_seconds: float,
        budget: RequestBudget,
    ) -> Lookup:
        """Look up any number of keys, in slices, with other requests answered in between.

        Args:
            reader: Reader of the space version.
            keys: The keys.
            call: The call that asks for them.
            timeout_seconds: Longest wait for a remote store in seconds; 0 for the default.
            budget: Charged with the bytes of the answer.

        Raises:
            InvalidRequest: A key is invalid, or there are too many.
            TooLarge: The answer would be too large.
            Overloaded: The byte budget of all requests is exhausted.
        """
        if len(keys) <= _AT_ONCE_KEYS and letters(keys) <= SLICE_LETTERS:
            found = self.quick(reader, keys, call)
            if found is not None:
                return await self.finished(reader, found, call, timeout_seconds)
        checked(keys, reader.settings.max_keys)
        form, caller = reader.version.form, _caller(reader, call)
        self._hold(len(keys) * form.dimension * form.answered.itemsize, budget)
        vectors = np.empty((len(keys), form.dimension), form.answered)
        slices, parts, longest = [], [], reader.settings.max_key_bytes
        async with self.slicer as slicer:
            # Check all keys before looking up any, so that an invalid one has no effect.
            for rows in in_slices(keys, _slice_of(reader), longest):
                reader.cache.hashes(keys[rows], longest, rows.start)
                slices.append(rows)
                await slicer.breathe()
            for rows in slices:
                parts.append(reader.begin(keys[rows], caller, vectors[rows]))
                await slicer.breathe()
        await self._ended_all(reader, parts, call, timeout_seconds)
        written = np.concatenate([part.written for part in parts])
        version = reader.version
        return Lookup(vectors, written, version.number, version.columns, oov=reader.cache.oov)

    async def finished(
        self, reader: SpaceReader, lookup: Lookup, call: Call, timeout_seconds: float
    ) -> Lookup:
        """Wait for the remote reads of a lookup, within the timeout, the deadline and the store's patience.

        Args:
            reader: Reader of the space version.
            lookup: Result of ``quick``.
            call: The call that asked for it; part of the time to its deadline is kept for the answer.
            timeout_seconds: Longest wait in seconds; 0 for the default.
        """
        if lookup.waits:
            await self._ended_all(reader, [lookup], call, timeout_seconds)
        return lookup

    async def _ended_all(
        self, reader: SpaceReader, parts: Sequence[Lookup], call: Call, timeout_seconds: float
    ) -> None:
        waits = [read for part in parts for read in part.waits]
        if not waits:
            return
        seconds = timeout_seconds or DEFAULT_TIMEOUT_SECONDS
        if call.deadline != NO_DEADLINE:
            left = call.deadline - time.monotonic()
            seconds = max(0.0, min(seconds, left - max(_TO_ANSWER_SECONDS, _TO_ANSWER_SHARE * left)))
        patience = reader.patience(seconds)
        await _arrived(waits, patience)
        for part in parts:
            reader.end(part, patience)

    def _hold(self, size: int, budget: RequestBudget) -> None:
        self._check_size(size, "in an answer", "ask for fewer keys at once")
        if size > _UNCOUNTED_BYTES:
            budget.hold(size)

    def hold_rows(self, reader: SpaceReader, keys: int, budget: RequestBudget) -> None:
        """Charge the bytes of a table's rows before they are made; a row has the full room of its texts.

        Args:
            reader: Reader of the table's version.
            keys: Number of rows.
            budget: Charged with the bytes.

        Raises:
            TooLarge: One request may not take so many bytes.
            Overloaded: The byte budget of all requests is exhausted.
        """
        budget.hold(self._rows_size(reader, keys))

    def _rows_size(self, reader: SpaceReader, keys: int) -> int:
        size = keys * reader.version.dimension
        self._check_size(size, "in a request", "put fewer keys at once, or give texts less room")
        return size

    def _check_size(self, size: int, where: str, way_out: str) -> None:
        most = self.limits.max_expanded_bytes
        if size > most:
            raise TooLarge(
                f"the vectors or rows would take {size} bytes; expected at most {most} {where} "
                f"(limits.max_expanded_bytes); {way_out}",
                field="keys",
            )

    # --- blocking calls ---

    async def put(self, space: str, keys: list[str], values: Values, version: int, call: Call) -> None:
        """Store vectors or rows.

        Args:
            space: Name of the space.
            keys: The keys.
            values: Numbers ``[N, dimension]``; for a feature table, the values by column, each ``[N]``.
            version: Version number; 0 for the default.
            call: The call that stores them.

        Raises:
            InvalidRequest: The keys or values are invalid.
            NotFound: There is no such space or version.
            TooLarge: One request may not take as many bytes as the rows need.
            Unavailable: The store does not answer.
            Overloaded: Too many such calls are in progress, or the byte budget is exhausted.
            DeadlineExceeded: Timed out; the write may still complete. It is safe to retry.
        """
        reader = self.reader(space, version)
        checked(keys, reader.settings.max_keys)
        archive, size = self.archive, sum(map(sys.getsizeof, keys))
        if isinstance(values, np.ndarray):
            put = functools.partial(archive.put, space, keys, values, version=version)
            size += values.nbytes
        else:
            put = functools.partial(archive.put_rows, space, keys, values, version=version)
            size += sum(one.nbytes for one in values.values()) + self._rows_size(reader, len(keys))
        await self._done(put, call, size)

    async def invalidate(self, space: str, keys: list[str], call: Call) -> None:
        """Remove the vectors of keys; raise as ``put``, and FailedPrecondition if clients may not do this."""
        self._check_admin()
        checked(keys, self.reader(space).settings.max_keys)
        size = sum(map(sys.getsizeof, keys))
        await self._done(lambda: self.archive.invalidate(space, keys), call, size)

    async def forget(self, space: str, keys: list[str], call: Call) -> None:
        """Remove keys with everything kept of them; raise as ``invalidate``."""
        self._check_admin()
        checked(keys, self.reader(space).settings.max_keys)
        size = sum(map(sys.getsizeof, keys))
        await self._done(lambda: self.archive.forget(space, keys), call, size)

    def _check_admin(self) -> None:
        check_admin("invalidating and forgetting", is_on=self.is_admin)

    async def _done(self, work: Callable[[], object], call: Call, size: int) -> None:
        """Run blocking work in one of a few threads, and wait for it until the deadline or a maximum.

        The bytes that it works on are charged to the shared byte budget until it ends. A call that timed out
        returns only the bytes of its own account.
        """
        if self._working >= _MOST_WAITING:
            raise Overloaded(
                f"{self._working} calls that write are in progress, which is the maximum; try again"
            )
        seconds = min(_LONGEST_SECONDS, call.deadline - time.monotonic())
        budget = call.budget if size > _UNCOUNTED_BYTES else None
        if budget is not None:
            budget.hold_of_stream(size)
        self._working += 1
        doing = asyncio.get_running_loop().run_in_executor(self._threads, work)
        doing.add_done_callback(lambda doing: self._ended(doing, budget, size))
        done, _ = await asyncio.wait((doing,), timeout=max(0.0, seconds))
        if not done:
            raise DeadlineExceeded("timed out; the write may still complete; it is safe to retry")
        doing.result()

    def _ended(self, doing: asyncio.Future[object], budget: Budget | None, size: int) -> None:
        self._working -= 1
        if budget is not None:
            budget.release(size)
        if not doing.cancelled():
            doing.exception()  # retrieved, or asyncio would log it when nobody waits for it


class GuardedArchiveService(ArchiveService):
    """The ArchiveService behind a Gate: callers look up and change only the spaces that their keys permit.

    The caller is that of the running task.
    """

    def __init__(self, archive: Archive, limits: Limits, slicer: TimeSlicer, *, is_admin: bool) -> None:
        """Serve an archive; as ``ArchiveService``."""
        super().__init__(archive, limits, slicer, is_admin=is_admin)
        self._answering, self._reader = self.answering, self.reader
        self.answering, self.reader = self._checked_answering, self._checked_reader

    def _checked_answering(self, space: str, version: int = 0) -> SpaceReader:
        return _his(self._answering, space, version)

    def _checked_reader(self, space: str, version: int = 0) -> SpaceReader:
        return _his(self._reader, space, version)

    def described(self, space: str = "") -> list[dict[str, object]]:
        """Describe a space, or all spaces that the caller may use."""
        if space:
            return _his(super().described, space)
        caller = ASKING.get()
        his = [name for name in self.archive.config.spaces if caller.spaces.match(name)]
        return [one for name in his for one in spaces(self.archive, name)]


def _his(
    find: Callable[Concatenate[str, Rest], Found], space: str, *args: Rest.args, **named: Rest.kwargs
) -> Found:
    """Return what ``find`` returns for a permitted space; hide the names of others if it finds nothing."""
    caller = ASKING.get()
    caller.check_space(space)
    try:
        return find(space, *args, **named)
    except NotFound as error:
        raise (error if caller.spaces.everything else error.without_others()) from None


def _caller(reader: SpaceReader, call: Call) -> str:
    """Return whose quota keys count towards: the name in the header or the address; "" without quotas."""
    if not reader.settings.max_new_keys_per_second:
        return ""
    named = call.header(CALLER_HEADER)
    if named:
        return named[:_LONGEST_CALLER].decode("latin-1")
    return call.outcome.caller.rpartition(":")[0] if call.outcome is not None else ""


def _slice_of(reader: SpaceReader) -> int:
    """Return the number of keys to look up in one step of some hundred microseconds."""
    return max(1, min(_AT_ONCE_KEYS, _AT_ONCE_BYTES // (reader.version.dimension * 4)))


async def _arrived(waits: Sequence[Future[Any]], seconds: float) -> None:
    """Wait until all reads have ended, or the time has; the reads go on either way."""
    loop = asyncio.get_running_loop()
    all_done: asyncio.Future[None] = loop.create_future()
    left = len(waits)

    def came() -> None:
        nonlocal left
        left -= 1
        if left == 0 and not all_done.done():
            all_done.set_result(None)

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop has closed, so nobody waits any more
            loop.call_soon_threadsafe(came)

    for one in waits:
        one.add_done_callback(tell)
    await asyncio.wait((all_done,), timeout=seconds)
