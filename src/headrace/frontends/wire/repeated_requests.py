"""Recognise requests that repeat except for their tensors, instead of parsing them.

Both gRPC protocols keep what they have learnt of requests here. Each kind of request is
known by the version of its model: a default or a label may lead to another version from one call to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from weakref import ReferenceType, ref

from headrace.base.tensors import Buffer
from headrace.frontends.wire.tensor_templates import Serialized, Span, Templates
from headrace.frontends.wire.tensors import WireTensor, spread_if_repeatable
from headrace.frontends.wire.text_templates import Found, TextTemplates, is_packable
from headrace.model.servable import CheckedInputs, RowLayout, Signature, spread_columns, takes_packed

if TYPE_CHECKING:
    from headrace.serving.loaded_version import LoadedVersion

_VERSIONS_KEPT = 4
_tuple = tuple.__new__

WriterT = TypeVar("WriterT")

Recognised = tuple["LoadedVersion", CheckedInputs, WriterT, str]
"""The version that a request asks for, its inputs, the writer of its answer, and its id ("" for none)."""

_Arrange = Callable[[tuple[Serialized, ...]], tuple[tuple[Buffer, ...], str] | None]


class Learnt(NamedTuple, Generic[WriterT]):
    """A request that was parsed and checked.

    Attributes:
        find: Finds the version that the request asks for, as a guarded Service permits.
        loaded: The version found.
        signature: The signature that it calls.
        inputs: The checked inputs.
        writer: Writes the answer.
        request_id: The client's id for the request; "" for none.
    """

    find: Callable[[], LoadedVersion]
    loaded: LoadedVersion
    signature: Signature
    inputs: CheckedInputs
    writer: WriterT
    request_id: str = ""


class Located(NamedTuple):
    """Positions of a request's values in its message.

    Attributes:
        spans: Positions of the id, if any, and of all values, in message order.
        texts: For each input, in message order, the place of its values among all values.
    """

    spans: list[Span]
    texts: Mapping[str, Found]


class _Version(NamedTuple, Generic[WriterT]):
    """The weak reference lets an unloaded version be freed."""

    loaded: ReferenceType[LoadedVersion]
    layout: RowLayout
    rows: int
    writer: WriterT
    arrange: _Arrange | None
    """Makes columns and the id of the parts cut out; None if the parts are the columns."""


class _Kind(NamedTuple, Generic[WriterT]):
    """The part of a request that its message determines without values; the newest version comes first."""

    find: Callable[[], LoadedVersion]
    has_id: bool
    versions: tuple[_Version[WriterT], ...]


class RepeatedRequests(Generic[WriterT]):
    """The kinds of requests that a handler has learnt."""

    __slots__ = ("_templates", "_texts")

    def __init__(self, *form: Mapping[int, int]) -> None:
        """Start without any.

        Args:
            form: Roles of the message's fields, for ``TextTemplates``.
        """
        self._templates: Templates[_Kind[WriterT]] = Templates()
        self._texts: TextTemplates[_Kind[WriterT]] = TextTemplates(*form)

    def recognise(self, message: Serialized) -> Recognised[WriterT] | None:
        """Decode a request without parsing it, if a similar one was learnt; else return None.

        Args:
            message: The serialized request.

        Raises:
            HeadraceError: The version is no longer available.
        """
        found = self._templates.find(message, len(message))
        if found is None:
            if self._texts.is_empty or not isinstance(message, bytes):
                return None
            return self._recognise_texts(message)
        (find, _, versions), parts = found
        loaded = find()
        known, layout, rows, writer, arrange = versions[0]
        if known() is not loaded:
            version = _version_of(versions, loaded)
            if version is None:
                return None
            _, layout, rows, writer, arrange = version
        # Named tuples made without their slow constructor, since most requests pass here.
        if arrange is None:
            return loaded, _tuple(CheckedInputs, (layout, parts, rows)), writer, ""
        arranged = arrange(parts)
        if arranged is None:
            return None
        columns, request_id = arranged
        return loaded, _tuple(CheckedInputs, (layout, columns, rows)), writer, request_id

    def _recognise_texts(self, message: bytes) -> Recognised[WriterT] | None:
        found = self._texts.find(message)
        if found is None:
            return None
        (find, has_id, versions), columns = found
        loaded = find()
        version = _version_of(versions, loaded)
        request_id = _decoded(self._texts.first_value(message)) if has_id else ""
        if version is None or request_id is None:
            return None
        return loaded, CheckedInputs(version.layout, columns, version.rows), version.writer, request_id

    def learn(
        self,
        message: bytes,
        tensors: Sequence[WireTensor],
        learnt: Learnt[WriterT],
        locate: Callable[[Mapping[str, WireTensor]], Located | None],
    ) -> None:
        """Remember a request if requests that differ in their values only can be taken without parsing.

        Args:
            message: The whole message.
            tensors: Its tensors as received, in message order.
            learnt: The result of parsing and checking it.
            locate: Returns the positions of the values, given the tensors by name; None if the message
                cannot be recognised again.
        """
        by_name = {tensor.name: tensor for tensor in tensors}
        inputs = learnt.inputs
        spread = spread_if_repeatable(learnt.signature, inputs, by_name)
        packs = spread is None and takes_packed(learnt.loaded.servable)
        if spread is None and not (packs and is_packable(learnt.signature, inputs, by_name)):
            return
        located = locate(by_name)
        if located is None:
            return
        has_id = bool(learnt.request_id)
        arrange = None if packs else _arranging(inputs, list(located.texts), spread or (), has_id=has_id)
        now = _Version(ref(learnt.loaded), inputs.layout, inputs.rows, learnt.writer, arrange)
        before = self._texts.find(message) if packs else self._templates.find(message, len(message))
        others = (
            [] if before is None else [one for one in before[0].versions if _stays(one, now, packs=packs)]
        )
        kind = _Kind(learnt.find, has_id, (now, *others[: _VERSIONS_KEPT - 1]))
        if packs:
            self._texts.learn(message, inputs, located.texts, kind)
        else:
            self._templates.learn(message, len(message), located.spans, kind)


def _version_of(versions: tuple[_Version[WriterT], ...], loaded: LoadedVersion) -> _Version[WriterT] | None:
    return next((one for one in versions if one.loaded() is loaded), None)


def _stays(one: _Version[WriterT], now: _Version[WriterT], *, packs: bool) -> bool:
    """Whether a version known before stays beside a new one; texts are packed by one layout for all."""
    form = (now.layout.specs, now.layout.shapes, now.rows)
    if packs and (one.layout.specs, one.layout.shapes, one.rows) != form:
        return False
    return one.loaded() not in (None, now.loaded())


def _arranging(
    inputs: CheckedInputs, names: Sequence[str], spread: tuple[int, ...], *, has_id: bool
) -> _Arrange | None:
    layout, _, rows = inputs
    order = [names.index(spec.name) for spec in layout.specs]
    reorder = itemgetter(*order) if order != sorted(order) else None
    if not (has_id or reorder or spread):
        return None

    def arrange(parts: tuple[Serialized, ...]) -> tuple[tuple[Buffer, ...], str] | None:
        request_id = _decoded(parts[0]) if has_id else ""
        if request_id is None:
            return None
        columns: tuple[Buffer, ...] = parts[has_id:]
        if reorder is not None:
            columns = reorder(columns)
        return (spread_columns(columns, spread, layout, rows) if spread else columns), request_id

    return arrange


def _decoded(request_id: Serialized) -> str | None:
    """Return a request's id; None if it is not UTF-8, for which parsing raises the right error."""
    try:
        return str(request_id, "utf-8")
    except UnicodeDecodeError:
        return None
