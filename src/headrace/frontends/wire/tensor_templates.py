"""Recognise messages that repeat except for their raw tensors, instead of parsing them.

A client sends one kind of request again and again: all bytes but the tensors' are the same. The first such
message is parsed and checked in full, then remembered as its skeleton, the bytes around the tensors. A later
message of the same length with an equal skeleton must parse to the same except for the tensors, so cutting
them out is enough. Messages that do not say which model they are for also need keys that tell versions apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import Generic, TypeVar

from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES

Serialized = bytes | memoryview
"""A serialized message; a large one may be a view of the body that contained it."""

Span = tuple[int, int]
"""Position of a field's value in its message: start and stop."""

TEMPLATES_KEPT = 2048
"""Largest number of kinds of messages that a handler knows; each number of rows or candidates is a kind."""

_TEMPLATES_OF_ONE_KEY = 16
_LARGEST_SKELETON_BYTES = 4096

MOST_FIELDS = _LARGEST_SKELETON_BYTES // 2
"""Most fields, nested ones included, of a message that can have a template: each takes two bytes."""

_LEAST_VIEW_BYTES = 4096

# Made once, since most requests are cut by them.
_SKELETON, _TENSORS = slice(0, None, 2), slice(1, None, 2)

Value = TypeVar("Value")


class Template(Generic[Value]):
    """One skeleton, and what is known about the messages that have it.

    Attributes:
        cut: Function that cuts a message of the right length into alternating skeleton and tensors, skeleton
            first. Large tensors of large messages are views of the message, all other parts are bytes.
        skeleton: Bytes between the tensors.
        value: Value remembered with the skeleton.
    """

    __slots__ = ("cut", "skeleton", "value")

    def __init__(self, message: bytes, spans: Sequence[Span], value: Value) -> None:
        """Take a message's skeleton.

        Args:
            message: The whole message.
            spans: Positions of the tensors, in order and disjoint.
            value: Value to remember.
        """
        edges = [0, *(edge for span in spans for edge in span), len(message)]
        sizes = [stop - start for start, stop in pairwise(edges)]
        # Cutting many small parts in one call is faster than one by one.
        least_bytes = max(AT_ONCE_BYTES, len(sizes) * _LEAST_VIEW_BYTES)
        self.cut = _viewing(sizes) if len(message) > least_bytes else _copying(sizes)
        self.skeleton = self.cut(message)[_SKELETON]
        self.value = value


_Cut = Callable[[Serialized], tuple[Serialized, ...]]


def _copying(sizes: Sequence[int]) -> _Cut:
    return Struct("<" + "".join(f"{size}s" for size in sizes)).unpack


def _viewing(sizes: Sequence[int]) -> _Cut:
    edges = list(pairwise(accumulate(sizes, initial=0)))

    def cut(message: Serialized) -> tuple[Serialized, ...]:
        whole = memoryview(message)
        return tuple([
            whole[start:stop] if stop - start >= _LEAST_VIEW_BYTES else bytes(whole[start:stop])
            for start, stop in edges
        ])  # fmt: skip

    return cut


class Templates(Generic[Value]):
    """The templates that a handler has learnt, limited in number and size."""

    __slots__ = ("_by_key", "_kept", "_orders")

    def __init__(self) -> None:
        """Start without templates."""
        self._by_key: dict[Hashable, tuple[Template[Value], ...]] = {}
        self._kept = 0
        self._orders = False  # by use, which matters once messages of one key have as many as they may

    def find(self, message: Serialized, key: Hashable) -> tuple[Value, tuple[Serialized, ...]] | None:
        """Recognise a message.

        Args:
            message: The whole message.
            key: Its length, with anything else that must be equal.

        Returns:
            The remembered value, and this message's tensors; None for a message that must be parsed.
        """
        for template in self._by_key.get(key, ()):
            pieces = template.cut(message)
            if pieces[_SKELETON] == template.skeleton:
                if self._orders:
                    self._move_to_front(template, key)
                return template.value, pieces[_TENSORS]
        return None

    def _move_to_front(self, template: Template[Value], key: Hashable) -> None:
        """Move a template that was used to the front: the last one is the next to be forgotten."""
        known = self._by_key[key]
        if template is not known[0]:
            self._by_key[key] = (template, *(one for one in known if one is not template))

    def learn(self, message: bytes, key: Hashable, spans: Sequence[Span], value: Value) -> None:
        """Remember a message that was parsed and checked, in place of the one of its key used longest ago.

        Args:
            message: The whole message.
            key: Its key, as in ``find``.
            spans: Positions of the tensors, in order and disjoint.
            value: Value to remember: everything that the key and the rest of the message determine.
        """
        if len(message) - sum(stop - start for start, stop in spans) > _LARGEST_SKELETON_BYTES:
            return
        if self._kept >= TEMPLATES_KEPT:  # bounds the memory, however many kinds of messages there are
            oldest = next(iter(self._by_key))  # the oldest only, or most messages would be parsed again
            self._kept -= len(self._by_key.pop(oldest))
        learnt = Template(message, spans, value)
        known = self._by_key.get(key, ())
        others = tuple(template for template in known if template.skeleton != learnt.skeleton)
        now = (learnt, *others)[:_TEMPLATES_OF_ONE_KEY]
        self._by_key[key] = now
        self._orders |= len(now) == _TEMPLATES_OF_ONE_KEY
        self._kept += len(now) - len(known)
