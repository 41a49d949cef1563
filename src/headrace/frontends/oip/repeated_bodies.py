"""Recognise binary bodies of ``/infer`` that repeat except for their raw tensors, instead of parsing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.base.tensors import Buffer
from headrace.frontends.calls import HttpCall
from headrace.frontends.oip.infer_bodies import JsonInference, OutputChoice
from headrace.frontends.wire.tensor_templates import Span, Templates
from headrace.frontends.wire.tensors import WireTensor, spread_if_repeatable
from headrace.model.servable import CheckedInputs, RowLayout, spread_columns

if TYPE_CHECKING:
    from headrace.serving.loaded_version import LoadedVersion


class _Known(NamedTuple):
    """The contents of a template."""

    json_bytes: int
    layout: RowLayout
    rows: int
    order: tuple[int, ...]
    outputs: tuple[OutputChoice, ...]
    spread: tuple[int, ...]


class RepeatedBodies:
    """The kinds of binary requests that a handler has learnt, of all versions together.

    A body does not say which version it is for, so templates have a key per version. An unloaded version
    leaves some templates behind, which nothing finds any more and newer ones replace.
    """

    __slots__ = ("_templates",)

    def __init__(self) -> None:
        """Start without any."""
        self._templates: Templates[_Known] = Templates()

    def recognise(self, loaded: LoadedVersion, call: HttpCall, json_bytes: int) -> JsonInference | None:
        """Decode a request without parsing it, if a similar one was learnt; else return None.

        Args:
            loaded: The version in the path.
            call: The call.
            json_bytes: Length of the JSON in its body, in bytes.
        """
        version = loaded.codec_cache.get(RepeatedBodies)
        if version is None:
            return None
        found = self._templates.find(call.body, (version, len(call.body)))
        if found is None:
            return None
        known, columns = found
        if known.json_bytes != json_bytes:
            return None
        if call.account is not None:
            call.account.hold(
                sum([len(one) for one in columns if isinstance(one, bytes)])
            )  # these are copies
        ordered: tuple[Buffer, ...] = tuple([columns[i] for i in known.order])
        if known.spread:
            ordered = spread_columns(ordered, known.spread, known.layout, known.rows)
        inputs = CheckedInputs(known.layout, ordered, known.rows)
        return JsonInference(inputs, known.outputs, "", call.deadline)

    def learn(
        self,
        loaded: LoadedVersion,
        body: bytes,
        json_bytes: int,
        came: list[tuple[WireTensor, Span]],
        inference: JsonInference,
    ) -> None:
        """Remember a request if requests that differ in their values only can be taken without parsing.

        Args:
            loaded: The version that it asks for.
            body: The whole body.
            json_bytes: Length of its JSON, in bytes.
            came: Its tensors as received, and their positions, in the body's order.
            inference: The result of parsing and checking it.
        """
        by_name = {tensor.name: tensor for tensor, _ in came}
        layout, _, rows = inference.inputs
        spread = spread_if_repeatable(loaded.signatures[layout.signature], inference.inputs, by_name)
        if spread is None:
            return
        places = {name: index for index, name in enumerate(by_name)}
        order = tuple(places[spec.name] for spec in layout.specs)
        known = _Known(json_bytes, layout, rows, order, inference.outputs, spread)
        version = loaded.codec_cache.setdefault(RepeatedBodies, object())  # which no other version ever has
        self._templates.learn(body, (version, len(body)), [span for _, span in came], known)
