"""All errors that headrace raises deliberately.

The tree, organised by what the caller can do about the error::

    HeadraceError
      x InvalidRequest          the request is wrong: change it; a retry of the same request cannot help
        + TooLarge              the request exceeds this server's limits
        + InvalidRows           some rows of a batch are wrong: the model names them, and only those fail
      x NotFound                no such model, version, label or signature here
      x Unauthenticated         the caller is unknown: send a key that this server knows
      x PermissionDenied        the caller is known, but lacks the permission
      x FailedPrecondition      right request, wrong moment or mode: the operator must act first
      x Conflict                the object exists already, or is being changed concurrently
      x Refused                 nothing was computed; the same request may succeed later
        + OverLimit             the caller has exhausted its quota for now
        + Overloaded            the queue is full, or the wait would exceed the deadline
        + Unavailable           the model or the server is starting, draining or gone
      x DeadlineExceeded        the answer would have come too late
      x Cancelled               the caller no longer waits for the answer
      x Unsupported             a feature of the protocol that this server lacks
      x ModelError              the model itself failed on this request
        + ModelDied             the model's process crashed on it; a retry may crash it again
      x LoadError               a version could not be loaded; loaded versions keep serving
        + NotLoadable           permanent with these files and settings: there is no retry
          + NewerFormat         written by a newer headrace
      x ConfigError             a setting is wrong; the server does not start
        + PlaceTaken            a port is in use; a later start may succeed with the same settings
      x StreamError             a row of a stream cannot be learnt from; the rows before it were

Protocol codes live at the edge, in ``headrace.base.status_codes``: no class here knows HTTP or gRPC.
Messages reach clients. They repeat what the client sent and what the model expects, never paths or
tracebacks. If operators need more (an exception in a model's code, a store's address), ``told`` is the
callers' version. ``LoadError`` and ``ConfigError`` are for operators and may name files. Messages repeat
external text, so each message is cut to ``LONGEST_MESSAGE`` characters here, and invalid Unicode in it is
escaped.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

LONGEST_MESSAGE = 4000
"""Maximum length of an error message in characters; a longer one loses its middle."""

_LONGEST_SHOWN = 100
_NAMES_COMPARED = 100


class HeadraceError(Exception):
    """Base class of all errors that headrace raises deliberately."""

    retriable = False

    _told = ""

    def __init__(self, message: str | None = None, *, told: str = "") -> None:
        """Create the error.

        Args:
            message: Text for people, cut to ``LONGEST_MESSAGE`` characters; the class name if None.
            told: Text for callers, if the message is for operators only.
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
        """The text for callers, who may be anybody: the message, or its replacement."""
        return self._told or self.message


def shown(text: str | bytes) -> str:
    """Format an external name or text for a message; a long one is cut first."""
    if len(text) <= _LONGEST_SHOWN:
        return repr(text)
    return f"{text[:_LONGEST_SHOWN]!r} … ({len(text)} in all)"


def listed(names: Iterable[object], most: int = 50) -> str:
    """Join names for a message; list only the first ones of many, and count the others."""
    every = list(map(str, names))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


_PATH = re.compile(r"(?<![\w.:/~-])(?:~|file://)?/(?:[^\s/'\":,;()]+/)+")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{6,}\b")


def without_paths(text: str) -> str:
    """Return a text without the directories of the files it names, and without memory addresses."""
    return _ADDRESS.sub("", _PATH.sub("", text))


def instead(name: str, there: Iterable[str]) -> str:
    """Return a hint for a name that was not found: the most similar name, and the existing names.

    Args:
        name: The name that was requested.
        there: The existing names; only the first ones are compared and listed.
    """
    names = list(there)
    if not names:
        return "there are none"
    near = nearest(name, names[:_NAMES_COMPARED])
    if near:
        return f"did you mean {near}?" + (f" There are {listed(names)}" if len(names) > 1 else "")
    return f"there are {listed(names)}"


def nearest(name: str, there: Sequence[str]) -> str:
    """Return the existing name most similar to a mistyped one, for a message; "" if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - only needed for errors

    near = get_close_matches(name[:_LONGEST_SHOWN], there, 1)
    return shown(near[0]) if near else ""


def _printable(message: str) -> str:
    """Cut a message, and escape lone surrogates, which JSON may contain but no response can carry."""
    message = cut(message, LONGEST_MESSAGE)
    if message.isascii():
        return message
    return cut(message.encode(errors="backslashreplace").decode(), LONGEST_MESSAGE)


def cut(message: str, longest: int) -> str:
    """Cut the middle of a text: a message begins with the problem, and ends with the remedy.

    Args:
        message: The text.
        longest: Maximum number of characters, 200 or more.
    """
    if len(message) <= longest:
        return message
    left_out, end = f" … ({len(message)} characters in all) … ", longest // 4
    return message[: longest - end - len(left_out)] + left_out + message[-end:]


class InvalidRequest(HeadraceError):
    """The request is wrong; a retry of the same request fails again.

    Attributes:
        field: The wrong part, as the client wrote it (an input's name, a JSON path, a header), or "".
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        """Create the error.

        Args:
            message: The expected and the actual value, and the fix.
            field: The part of the request that is wrong; put in front of the message.
        """
        self.field = cut(field, LONGEST_MESSAGE)
        super().__init__(f"{self.field}: {message}" if field else message)


class TooLarge(InvalidRequest):
    """The request, as sent or decompressed, exceeds this server's limits."""


class InvalidRows(InvalidRequest):
    """Some rows are wrong; raised by a model that can name them all before it computes anything.

    In a batch, only the requests with such rows fail; the others are computed together without them.

    Attributes:
        rows: The error of each wrong row, by row number; see ``of``.
    """

    def __init__(
        self, message: str, *, field: str = "", rows: Mapping[int, tuple[str, str]] | None = None
    ) -> None:
        """Create the error; ``of`` derives the message from the rows.

        Args:
            message: The problem of the first wrong row.
            field: Input of that row; put in front of the message.
            rows: As the attribute, in ascending order.
        """
        super().__init__(message, field=field)
        self.rows = rows or {}
        self._numbers = list(self.rows)

    @classmethod
    def of(cls, rows: Mapping[int, tuple[str, str]]) -> InvalidRows:
        """Return the error for these rows, at least one; its message is about the first.

        Args:
            rows: For each wrong row, by its number, the wrong input and the text that its error message has
                after ``row 7``: ``: expected …``, or ``, column 3: expected …``.
        """
        rows = dict(sorted(rows.items()))
        row, (field, reason) = next(iter(rows.items()))
        return cls(f"row {row}{reason}", field=field, rows=rows)

    def within(self, start: int, stop: int) -> InvalidRequest | None:
        """Return the error for the first wrong row of ``start:stop``, renumbered from ``start``, or None.

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
    """Nothing of that name is here: no such model, version, label, signature, space, key or file."""

    _alone = ""

    def __init__(self, message: str | None = None, *, told: str = "", others: str = "") -> None:
        """Create the error.

        Args:
            message: As for every error.
            told: As for every error.
            others: The existing alternatives, as text appended to the message; for callers who may know them.
        """
        super().__init__(f"{message}; {others}" if others else message, told=told)
        if others and message:
            self._alone = message

    def without_others(self) -> NotFound:
        """Return the same error for a caller that may not know the alternatives."""
        return NotFound(self._alone) if self._alone else self


class Unauthenticated(HeadraceError):
    """The request has no key or token, or one that is unknown, invalid or expired."""


class PermissionDenied(HeadraceError):
    """The caller's key or token does not permit this."""


class FailedPrecondition(HeadraceError):
    """The request is well formed, but the server's state or configuration does not allow it."""


class Conflict(HeadraceError):
    """The object to create exists already, or is being changed concurrently."""


_LONGEST_RETRY_SECONDS = 86_400.0


class Refused(HeadraceError):
    """Nothing was computed; the same request may succeed later.

    Attributes:
        retry_after_seconds: Estimated time in seconds after which a retry makes sense.
    """

    retriable = True

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, told: str = "") -> None:
        """Create the error.

        Args:
            message: The reason, with the numbers that decided it.
            retry_after_seconds: Estimated time in seconds after which a retry makes sense.
            told: Text for callers, if the message is for operators only.
        """
        super().__init__(message, told=told)
        # A model's own code may pass any value; this clamps it to a valid time, NaN included.
        self.retry_after_seconds = min(max(0.0, retry_after_seconds), _LONGEST_RETRY_SECONDS)


class OverLimit(Refused):
    """The caller has exhausted its quota for now; other callers are answered."""


class Overloaded(Refused):
    """The queue or the memory budget is full, or the predicted wait exceeds the request's deadline."""


class Unavailable(Refused):
    """The model or the server is starting or draining, or a store, queue or process does not answer."""


class DeadlineExceeded(HeadraceError):
    """The deadline passed before there was an answer."""


class Cancelled(HeadraceError):
    """The caller left before there was an answer."""


class Unsupported(HeadraceError):
    """The request needs a feature of the protocol that this server lacks."""


class ModelError(HeadraceError):
    """The model failed on this request, or returned outputs that violate its signature."""


class ModelDied(ModelError):
    """The process of an isolated model ended while it computed this request.

    A request that was computed alone may have crashed the process, so it should not be retried unchanged.
    Requests that were computed together are refused as ``Unavailable`` instead, as most of them are innocent.
    """

    def shared(self, requests: int) -> Unavailable:
        """Return the error for each of several requests that were computed together."""
        return Unavailable(f"{self.message}, together with {requests - 1} others; try again")


class LoadError(HeadraceError):
    """A version could not be loaded; loaded versions keep serving."""


class NotLoadable(LoadError):
    """A version cannot be loaded from its files with these settings; a retry cannot help.

    Conditions that may pass (a failing disk, low memory, a file being written by others) are a plain
    LoadError, which is retried.
    """


class NewerFormat(NotLoadable):
    """A newer headrace wrote this, in an unknown format; it is not damaged."""


class ConfigError(HeadraceError):
    """A setting is wrong; the message names the setting, the expected values and the actual one."""


def needs_extra(what: str, extra: str, lacking: object) -> ConfigError:
    """Return the error for something whose packages are not installed.

    Args:
        what: The setting, the command or the thing that needs them.
        extra: The extra of headrace that installs them; several are separated by commas.
        lacking: The failed import, or the missing package.
    """
    return ConfigError(f"{what} needs an extra ({lacking}): pip install 'headrace[{extra}]'")


class PlaceTaken(ConfigError):
    """A configured port is in use; it may become free without a change of the settings."""


class StreamError(HeadraceError):
    """A stream is cut, corrupt, or contains a row that cannot be learnt from; all rows before it were good.

    Attributes:
        row: Number of the first bad row, from 0.
        field: The wrong field; "" if the stream itself is wrong.
        problem: The message without the position.
    """

    def __init__(self, message: str, *, row: int = 0, field: str = "") -> None:
        """Create the error.

        Args:
            message: The expected and the actual value, and the fix.
            row: Number of the row, from the stream's start; put in front of the message.
            field: The wrong field; put in front of the message.
        """
        where = f"row {row}, field {field!r}" if field else f"row {row}"
        super().__init__(f"stream, {where}: {message}")
        self.row = row
        self.field = field
        self.problem = message

    def within(self, where: str) -> StreamError:
        """Return the same error with more detail about the position."""
        return StreamError(f"{self.problem}; {where}", row=self.row, field=self.field)
