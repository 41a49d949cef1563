"""The trace of a call: W3C Trace Context (``traceparent``, ``tracestate``), parsed and generated."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import NamedTuple

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
SAMPLED = 0x01
"""The flag by which the caller states that it records the trace."""

_KEPT_FLAGS = 0x03  # the defined flags: sampled, and random trace id
_STATE_MEMBERS, _STATE_BYTES = 32, 512
# Later versions may append further fields after a dash; version 00 may not.
_PARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_KEY = rb"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_MEMBER = re.compile(rb"(" + _KEY + rb")=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])")

Headers = Iterable[tuple[bytes, bytes]]


class Parent(NamedTuple):
    """The caller's span.

    Attributes:
        trace_id: The trace id, 32 hexadecimal digits.
        span_id: The caller's span id, 16 hexadecimal digits.
        flags: The trace flags; see ``SAMPLED``.
    """

    trace_id: str
    span_id: str
    flags: int

    @property
    def is_sampled(self) -> bool:
        """Whether the caller records the trace."""
        return bool(self.flags & SAMPLED)


class TraceContext:
    """A call's place in a trace.

    Attributes:
        trace_id: The trace id, 32 hexadecimal digits.
        span_id: The call's span id, 16 hexadecimal digits; the caller's if the call has no span of its own.
        parent_id: The caller's span id; "" if the trace begins here.
        is_remote: Whether the parent is in another process.
        flags: The caller's trace flags, or those of a trace that begins here.
        state: The ``tracestate`` as received; "" without one.
        is_recorded: Whether the call becomes a span.
    """

    __slots__ = ("flags", "is_recorded", "is_remote", "parent_id", "span_id", "state", "trace_id")

    def __init__(self, parent: Parent | None, state: str = "", *, is_recorded: bool, is_remote: bool = True):
        """Begin a span below a parent or in a new trace, or only record the parent.

        Args:
            parent: The caller's span; None to begin a trace.
            state: The caller's ``tracestate``.
            is_recorded: Whether the call becomes a span.
            is_remote: Whether the parent is in another process.
        """
        self.parent_id, self.is_remote, self.state = "", is_remote and parent is not None, state
        self.is_recorded = is_recorded
        if parent is None:
            self.trace_id, self.flags = new_trace_id(), SAMPLED
        else:
            self.trace_id, self.flags = parent.trace_id, parent.flags & _KEPT_FLAGS
        if parent is not None and not is_recorded:
            self.span_id = parent.span_id
        else:
            self.span_id = new_span_id()
            self.parent_id = "" if parent is None else parent.span_id

    def child(self) -> TraceContext:
        """Return the context of a span below this one, in this process."""
        parent = Parent(self.trace_id, self.span_id, self.flags)
        return TraceContext(parent, self.state, is_recorded=True, is_remote=False)

    def unrecorded(self) -> TraceContext:
        """Return the context of work within this span that does not become a span, for log lines."""
        return TraceContext(Parent(self.trace_id, self.span_id, self.flags), self.state, is_recorded=False)


def new_trace_id() -> str:
    """Generate a trace id: 32 hexadecimal digits, not all zero."""
    return f"{random.getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    """Generate a span id: 16 hexadecimal digits, not all zero."""
    return f"{random.getrandbits(64) or 1:016x}"


def parent_in(headers: Headers) -> Parent | None:
    """Return the caller's span; None if ``traceparent`` is missing, repeated or invalid."""
    found = [value for name, value in headers if name == TRACEPARENT]
    return parse_parent(found[0]) if len(found) == 1 else None


def parse_parent(value: bytes) -> Parent | None:
    """Parse a ``traceparent``; return None if it is invalid."""
    matched = _PARENT.fullmatch(value)
    if matched is None:
        return None
    version, trace_id, span_id, flags, more = matched.groups()
    if more and version == b"00":
        return None
    return Parent(trace_id.decode(), span_id.decode(), int(flags, 16))


def state_in(headers: Headers) -> str:
    """Return the caller's ``tracestate``, joined from all its headers; "" if it is invalid.

    Repeated keys count as invalid, and so do more members or bytes than the standard requires to propagate.
    """
    together = b",".join(value for name, value in headers if name == TRACESTATE)
    if len(together) > _STATE_BYTES:
        return ""
    members = [member for part in together.split(b",") if (member := part.strip(b" \t"))]
    matched = [_MEMBER.fullmatch(member) for member in members]
    keys = {one[1] for one in matched if one is not None}
    if len(keys) != len(members) or len(members) > _STATE_MEMBERS:
        return ""
    return b",".join(members).decode("ascii")


def noted(headers: Headers) -> TraceContext | None:
    """Return the context of a call without a span, for log lines; None without a valid ``traceparent``."""
    parent = parent_in(headers)
    return None if parent is None else TraceContext(parent, is_recorded=False)
