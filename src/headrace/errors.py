"""Every error headrace raises on purpose.

The tree, named for what the caller can do about it::

    HeadraceError
      x InvalidRequest          the request is wrong: change it; retrying as it is cannot help
        + TooLarge              it is larger than this server takes
        + InvalidRows           some rows of a batch are wrong: a model says which, and only those fail
      x NotFound                no such model, version, label or signature here
      x Unauthenticated         nobody knows who asks: come with a key that is known here
      x PermissionDenied        it is known who asks, and he may not
      x FailedPrecondition      right request, wrong moment or mode: the operator must act first
      x Conflict                it is there already, or somebody else is changing it
      x Refused                 nothing was computed; the same request may succeed later
        + OverLimit             the caller has had what he may have for now
        + Overloaded            the queue is full, or the wait would outlast the deadline
        + Unavailable           the model or the server is starting, draining or gone
      x DeadlineExceeded        the answer would have come too late
      x Cancelled               nobody waits for the answer any more
      x Unsupported             a feature of the protocol that this server does not have
      x ModelError              the model itself failed on this request
        + ModelDied             its own process ended over it: sent again, it may well do that again
      x LoadError               a version could not be loaded; the old one goes on
        + NotLoadable           nor ever, from these files with these settings: it is not tried again
          + NewerFormat         a newer headrace wrote it
      x ConfigError             a setting is wrong; the server does not start
      x StreamError             a row of a stream cannot be learnt from; what came before it was

Protocol codes live at the edge, in ``headrace.status``: no class here knows HTTP or gRPC.
Messages reach clients: they hold what the client sent and what the model wants, never paths or tracebacks.
Where operators need more (what a model's code raised, where a store is), ``told`` is what callers get.
``LoadError`` and ``ConfigError`` are for operators and may name files. Messages repeat texts from outside as
they came, so every message is cut to ``LONGEST_MESSAGE`` characters here, and what is no Unicode text in it
is escaped, once for all of them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

LONGEST_MESSAGE = 4000
"""The most characters of an error's message; a longer one loses its middle."""

_END_KEPT = 1000
_LONGEST_SHOWN = 100
_NAMES_COMPARED = 100


class HeadraceError(Exception):
    """The base of every error that headrace raises on purpose."""

    retriable = False

    _told = ""

    def __init__(self, message: str | None = None, *, told: str = "") -> None:
        """Say what happened.

        Args:
            message: For people; cut to ``LONGEST_MESSAGE`` characters. The name of the class stands for None.
            told: What callers are told, where the message is for operators only.
        """
        super().__init__(self.__class__.__name__ if message is None else _printable(message))
        if told:
            self._told = _printable(told)

    @property
    def message(self) -> str:
        """The text for people, without the class name."""
        return str(self.args[0])

    @property
    def told(self) -> str:
        """The text for callers, who may be anybody: the message, or what was put in its place."""
        return self._told or self.message


def shown(text: str | bytes) -> str:
    """A name or text from outside as a message repeats it: cut before it is printed, however long it is."""
    if len(text) <= _LONGEST_SHOWN:
        return repr(text)
    return f"{text[:_LONGEST_SHOWN]!r} … ({len(text)} in all)"


def listed(names: Iterable[object], most: int = 50) -> str:
    """Names for a message, one after the other: of many the first, and how many more there are."""
    every = list(map(str, names))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


_PATH = re.compile(r"(?<![\w.:/~-])(?:~|file://)?/(?:[^\s/'\":,;()]+/)+")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{6,}\b")


def without_paths(text: str) -> str:
    """A text that may name files, without the directories that they lie in, and without memory addresses."""
    return _ADDRESS.sub("", _PATH.sub("", text))


def instead(name: str, there: Iterable[str]) -> str:
    """What to say of a name that is not there: the one that it may be meant to be, and which there are.

    Args:
        name: What came.
        there: The names that there are; only the first ones are compared and told.
    """
    names = list(there)
    if not names:
        return "there are none"
    near = nearest(name, names[:_NAMES_COMPARED])
    if near:
        return f"did you mean {near}?" + (f" There are {listed(names)}" if len(names) > 1 else "")
    return f"there are {listed(names)}"


def nearest(name: str, there: Sequence[str]) -> str:
    """The name that a mistyped one may be meant to be; "" for none."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for what is wrong

    near = get_close_matches(name[:_LONGEST_SHOWN], there, 1)
    return shown(near[0]) if near else ""


def _printable(message: str) -> str:
    """Cut a message, and escape halves of surrogate pairs, which JSON may hold and no answer can carry."""
    message = _cut(message)
    if message.isascii():
        return message
    return _cut(message.encode(errors="backslashreplace").decode())


def _cut(message: str) -> str:
    """Leave out the middle: a message begins with what is wrong, and ends with the way out."""
    if len(message) <= LONGEST_MESSAGE:
        return message
    left_out = f" … ({len(message)} characters in all) … "
    return message[: LONGEST_MESSAGE - _END_KEPT - len(left_out)] + left_out + message[-_END_KEPT:]


class InvalidRequest(HeadraceError):
    """The request is wrong, and stays wrong when it is sent again.

    Attributes:
        field: What is wrong, as the client wrote it (an input's name, a JSON path, a header), or "".
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        """Say what is wrong.

        Args:
            message: What was expected, what came, and the way out.
            field: The part of the request that is wrong; put in front of the message.
        """
        self.field = _cut(field)
        super().__init__(f"{self.field}: {message}" if field else message)


class TooLarge(InvalidRequest):
    """The request, as it came or decompressed, is larger than this server takes."""


class InvalidRows(InvalidRequest):
    """Some rows are wrong; raised by a model that can name them all, before it has computed anything.

    Of a batch, only the requests with such rows fail then; the others are computed together, without them.

    Attributes:
        rows: What is wrong with each row that is, by its number; see ``of``.
    """

    def __init__(
        self, message: str, *, field: str = "", rows: Mapping[int, tuple[str, str]] | None = None
    ) -> None:
        """Say what is wrong; ``of`` makes the message of the rows.

        Args:
            message: What is wrong with the first of them.
            field: Its input; put in front of the message.
            rows: As the attribute, in ascending order.
        """
        super().__init__(message, field=field)
        self.rows = rows or {}
        self._numbers = list(self.rows)

    @classmethod
    def of(cls, rows: Mapping[int, tuple[str, str]]) -> InvalidRows:
        """The error of these rows, at least one; its message is about the first.

        Args:
            rows: For each wrong row, by its number, the input that is wrong, and what its error says after
                ``row 7``: ``: expected …``, or ``, column 3: expected …``.
        """
        rows = dict(sorted(rows.items()))
        row, (field, reason) = next(iter(rows.items()))
        return cls(f"row {row}{reason}", field=field, rows=rows)

    def within(self, start: int, stop: int) -> InvalidRequest | None:
        """The error of the rows ``start:stop``, counted from ``start``, if one of them is wrong.

        Args:
            start: The first of the rows.
            stop: The row after the last.
        """
        place = bisect_left(self._numbers, start)
        if place == len(self._numbers) or self._numbers[place] >= stop:
            return None
        row = self._numbers[place]
        return InvalidRows.of({row - start: self.rows[row]})


class NotFound(HeadraceError):
    """There is no model, version, label or signature of that name here."""

    _alone = ""

    def __init__(self, message: str | None = None, *, told: str = "", others: str = "") -> None:
        """Say what is not there.

        Args:
            message: As for every error.
            told: As for every error.
            others: What there is instead, in words; ends the message, for who may know of all of them.
        """
        super().__init__(f"{message}; {others}" if others else message, told=told)
        if others and message:
            self._alone = message

    def without_others(self) -> NotFound:
        """The same error, for who may not know what else there is."""
        return NotFound(self._alone) if self._alone else self


class Unauthenticated(HeadraceError):
    """It came without a key, or with one that is not known here."""


class PermissionDenied(HeadraceError):
    """The caller's key does not permit this."""


class FailedPrecondition(HeadraceError):
    """The request is well formed but the server is not in a state, or not configured, to do it."""


class Conflict(HeadraceError):
    """What should be made exists already, or something else is changing it now."""


_LONGEST_RETRY_SECONDS = 86_400.0


class Refused(HeadraceError):
    """Nothing was computed; the same request may succeed later.

    Attributes:
        retry_after_seconds: When trying again makes sense, as far as can be told.
    """

    retriable = True

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, told: str = "") -> None:
        """Refuse, and say when to come back.

        Args:
            message: Why, with the numbers that decided it.
            retry_after_seconds: An estimate of when the refusal's reason is over.
            told: What callers are told, where the message is for operators only.
        """
        super().__init__(message, told=told)
        # A model's own code may say anything; what is no time, NaN included, becomes one.
        self.retry_after_seconds = min(max(0.0, retry_after_seconds), _LONGEST_RETRY_SECONDS)


class OverLimit(Refused):
    """The caller has had what he may have for now; others are answered."""


class Overloaded(Refused):
    """The queue is full, or the predicted wait is longer than the request's deadline allows."""


class Unavailable(Refused):
    """The model or the server is starting, draining or stopped."""


class DeadlineExceeded(HeadraceError):
    """The deadline passed before there was an answer."""


class Cancelled(HeadraceError):
    """The caller left before there was an answer."""


class Unsupported(HeadraceError):
    """A feature of the protocol that this server does not have."""


class ModelError(HeadraceError):
    """The model failed on this request, or answered with something that its signature forbids."""


class ModelDied(ModelError):
    """The process of an isolated model ended while it computed this request.

    Where the request was computed alone, it may be what ended the process: so it is not to be sent again as
    it is. Requests that were computed together with others are refused instead, as ``Unavailable``: hardly
    any of them is to blame.
    """

    def shared(self, requests: int) -> Unavailable:
        """What each of several requests is told that were computed together."""
        return Unavailable(f"{self.message}, together with {requests - 1} others; try again")


class LoadError(HeadraceError):
    """A version could not be loaded; versions that are loaded go on."""


class NotLoadable(LoadError):
    """A version cannot be loaded from its files with these settings, however often it is tried.

    What may pass by itself (a disk that fails, memory that is short, a file that others write) is a plain
    LoadError, which is tried again.
    """


class NewerFormat(NotLoadable):
    """A newer headrace wrote this, in a format that is not known here; it is not damaged."""


class ConfigError(HeadraceError):
    """A setting is wrong; the message names it, what it may be, and what it was."""


class PlaceTaken(ConfigError):
    """A port that is set is somebody else's now; it may be free later, without a change of the settings."""


class StreamError(HeadraceError):
    """A stream is cut, corrupt, or holds a row that cannot be learnt from; all rows before it were good.

    Attributes:
        row: The number of the first row that is not good, from 0.
        field: The field that is wrong; "" if it is the stream itself.
        problem: The message, without where that is.
    """

    def __init__(self, message: str, *, row: int = 0, field: str = "") -> None:
        """Say what is wrong, and where.

        Args:
            message: What was expected, what came, and the way out.
            row: The number of the row, from the stream's start; put in front of the message.
            field: The field; put in front of the message.
        """
        where = f"row {row}, field {field!r}" if field else f"row {row}"
        super().__init__(f"stream, {where}: {message}")
        self.row = row
        self.field = field
        self.problem = message

    def within(self, where: str) -> StreamError:
        """The same, with more about where the row is."""
        return StreamError(f"{self.problem}; {where}", row=self.row, field=self.field)
