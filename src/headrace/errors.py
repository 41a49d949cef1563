"""Every error headrace raises on purpose.

The tree, named for what the caller can do about it::

    HeadraceError
      x InvalidRequest          the request is wrong: change it; retrying as it is cannot help
        + TooLarge              it is larger than this server takes
      x NotFound                no such model, version, label or signature here
      x FailedPrecondition      right request, wrong moment or mode: the operator must act first
      x Conflict                it is there already, or somebody else is changing it
      x Refused                 nothing was computed; the same request may succeed later
        + Overloaded            the queue is full, or the wait would outlast the deadline
        + Unavailable           the model or the server is starting, draining or gone
      x DeadlineExceeded        the answer would have come too late
      x Cancelled               nobody waits for the answer any more
      x Unsupported             a feature of the protocol that this server does not have
      x ModelError              the model itself failed on this request
      x LoadError               a version could not be loaded; the old one goes on
      x ConfigError             a setting is wrong; the server does not start
      x StreamError             a row of a stream cannot be learnt from; what came before it was

Protocol codes live at the edge, in ``headrace.frontends.status``: no class here knows HTTP or gRPC.
Messages reach clients, so they hold what the client sent and what the model wants, never paths or tracebacks
(``LoadError`` and ``ConfigError`` are for operators and may name files).
"""

from __future__ import annotations


class HeadraceError(Exception):
    """The base of every error that headrace raises on purpose."""

    retriable = False

    @property
    def message(self) -> str:
        """The text for people, without the class name."""
        return str(self.args[0]) if self.args else self.__class__.__name__


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
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class TooLarge(InvalidRequest):
    """The request, as it came or decompressed, is larger than this server takes."""


class NotFound(HeadraceError):
    """There is no model, version, label or signature of that name here."""


class FailedPrecondition(HeadraceError):
    """The request is well formed but the server is not in a state, or not configured, to do it."""


class Conflict(HeadraceError):
    """What should be made exists already, or something else is changing it now."""


class Refused(HeadraceError):
    """Nothing was computed; the same request may succeed later.

    Attributes:
        retry_after_seconds: When trying again makes sense, as far as can be told.
    """

    retriable = True

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        """Refuse, and say when to come back.

        Args:
            message: Why, with the numbers that decided it.
            retry_after_seconds: An estimate of when the refusal's reason is over.
        """
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


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


class LoadError(HeadraceError):
    """A version could not be loaded; versions that are loaded go on."""


class ConfigError(HeadraceError):
    """A setting is wrong; the message names it, what it may be, and what it was."""


class StreamError(HeadraceError):
    """A stream is cut, corrupt, or holds a row that cannot be learnt from; all rows before it were good.

    Attributes:
        row: The number of the first row that is not good, from 0.
        field: The field that is wrong; "" if it is the stream itself.
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
