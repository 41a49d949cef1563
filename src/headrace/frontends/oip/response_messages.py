"""Serialization of ModelInferResponse.

The bytes before the values are cached by row count, or by the outputs' shapes if these vary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, cast

from headrace.base.tensors import STRING
from headrace.batching.request import Answer, Origin
from headrace.frontends.calls import origin_text
from headrace.frontends.oip.datatypes import CONTENTS, datatype_name, writing_output
from headrace.frontends.oip.parameters import ANSWERED_BY_PARAMETER
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_fields import is_large, is_large_raw, length_prefix, raw_texts_of
from headrace.frontends.wire.tensors import raw_bytes
from headrace.frontends.wire.texts import join_strings
from headrace.frontends.wire.time_slicer import Steps, joined
from headrace.model.servable import Shape, Signature

if TYPE_CHECKING:
    from headrace.frontends.wire.request_budget import RequestBudget
    from headrace.serving.loaded_version import LoadedVersion

InferResponse = protos.message("inference.ModelInferResponse")

_ID = 3  # ModelInferResponse.id
_RAW_OUTPUTS = 6  # ModelInferResponse.raw_output_contents
_WRITERS_KEPT = 64
_HEADS_KEPT = 512


def writer_for(
    loaded: LoadedVersion, signature: Signature, outputs: tuple[str, ...], *, typed: bool = False
) -> AnswerWriter:
    """Return the writer for a selection of outputs, made once per version.

    Args:
        loaded: The version that answers.
        signature: The signature that is called.
        outputs: Names of the requested outputs; empty for all.
        typed: Whether to answer in typed contents, as the client sent; raw if an output's datatype has none.

    Raises:
        InvalidRequest: An output is unknown or named twice.
    """
    writers = cast("_Writers", loaded.codec_cache.setdefault(AnswerWriter, {}))
    found = writers.get((signature.name, outputs, typed))
    if found is None:
        chosen = signature.check_outputs(outputs) if outputs else signature.output_names
        if len(writers) >= _WRITERS_KEPT:
            writers.clear()
        found = writers[signature.name, outputs, typed] = AnswerWriter(loaded, signature, chosen, typed=typed)
    return found


def _id_field(request_id: str) -> bytes:
    """Return the response's id, serialized; it is appended, as fields may come in any order."""
    encoded = request_id.encode()
    return length_prefix(_ID, len(encoded)) + encoded if encoded else b""


def origin_field(origin: Origin) -> bytes:
    """Return the response parameter that names the origin of a default answer, to be appended likewise."""
    said = InferResponse()
    said.parameters[ANSWERED_BY_PARAMETER].string_param = origin_text(origin)
    written: bytes = said.SerializeToString()
    return written


class _Part(NamedTuple):
    """The layout of one output in a response.

    Attributes:
        name: Name of the output.
        row_bytes: Size of a row in bytes; -1 for strings, whose size varies.
        before: Bytes before the values: the message's head for the first output, and a length for numbers.
        is_quick: Whether the values are known to be small enough to copy at once.
    """

    name: str
    row_bytes: int
    before: bytes
    is_quick: bool


_Writers = dict[tuple[str, tuple[str, ...], bool], "AnswerWriter"]


class AnswerWriter:
    """Writes the ModelInferResponses of one version for one selection of outputs."""

    __slots__ = ("_base", "_fixed", "_names", "_only", "_parts", "_specs", "_typed")

    def __init__(
        self, loaded: LoadedVersion, signature: Signature, outputs: tuple[str, ...], *, typed: bool
    ) -> None:
        """Prepare the parts that all answers share.

        Args:
            loaded: The version that answers.
            signature: The signature that is called.
            outputs: Names of the outputs to write.
            typed: Whether to write typed contents, if all datatypes have them.
        """
        by_name = {spec.name: spec for spec in signature.outputs}
        self._names = outputs
        self._specs = tuple(by_name[name] for name in outputs)
        self._typed = typed and all(datatype_name(spec) in CONTENTS for spec in self._specs)
        base = InferResponse(model_name=loaded.name, model_version=str(loaded.version))
        self._base: bytes = base.SerializeToString()
        in_rows = loaded.config.batching.enabled
        self._fixed = in_rows and all(None not in spec.shape for spec in self._specs)
        self._parts: dict[object, tuple[_Part, ...]] = {}
        self._only: dict[int, _Part] = {}  # by number of rows, where the single output is quick

    def write(self, answer: Answer, request_id: str = "") -> bytes | None:
        """Serialize an answer in one step.

        Args:
            answer: The answer.
            request_id: The request's id, which is returned.

        Returns:
            The bytes; None if this would take too long: use ``writing`` then.
        """
        only = self._only.get(answer.stop - answer.start)
        if only is not None and not request_id:  # the most common case
            name, row_bytes, before, _ = only
            return before + answer.raw(name, row_bytes)
        if self._typed:
            if any(is_large(answer.tensor(name)) for name in self._names):
                return None
            return self._base + self._typed_outputs(answer) + _id_field(request_id)
        written = []
        for name, row_bytes, before, is_quick in self._parts_of(answer):
            written.append(before)
            if is_quick:
                written.append(answer.raw(name, row_bytes))
                continue
            tensor = answer.tensor(name)
            if row_bytes >= 0 or is_large(tensor):
                return None
            strings = join_strings(tensor.ravel().tolist())
            written += (length_prefix(_RAW_OUTPUTS, len(strings)), strings)
        return b"".join(written) + _id_field(request_id)

    def writing(self, answer: Answer, request_id: str, budget: RequestBudget) -> Steps[bytes]:
        """Serialize an answer in small steps.

        Args:
            answer: The answer.
            request_id: The request's id, which is returned.
            budget: Charged with the bytes written.

        Raises:
            Overloaded: The byte budget of all requests is exhausted.
        """
        written: list[bytes | memoryview] = []
        if self._typed:
            written.append(self._base)
            for spec in self._specs:
                written += yield from writing_output(spec, answer.tensor(spec.name), budget)
        else:
            for name, row_bytes, before, _ in self._parts_of(answer):
                written.append(before)
                if row_bytes < 0:
                    written += yield from raw_texts_of(_RAW_OUTPUTS, answer.tensor(name), budget)
                else:
                    tensor = answer.tensor(name)
                    budget.hold(tensor.nbytes)
                    written.append(raw_bytes(tensor))
        written.append(_id_field(request_id))
        return (yield from joined(written))

    def _parts_of(self, answer: Answer) -> tuple[_Part, ...]:
        # If the model fixes the outputs' shapes, the number of rows determines all but the values.
        key = answer.stop - answer.start if self._fixed else self._shapes(answer)
        return self._parts.get(key) or self._learn(key, answer)

    def _shapes(self, answer: Answer) -> tuple[Shape, ...]:
        return tuple([answer.tensor(name).shape for name in self._names])

    def _learn(self, key: object, answer: Answer) -> tuple[_Part, ...]:
        """Store the bytes before each output's values, for answers with these shapes."""
        response = InferResponse()
        parts: list[_Part] = []
        for spec, shape in zip(self._specs, self._shapes(answer), strict=True):
            response.outputs.add(name=spec.name, datatype=datatype_name(spec), shape=shape)
            if spec.dtype == STRING:
                parts.append(_Part(spec.name, -1, b"", is_quick=False))
            else:
                row_bytes = spec.dtype.itemsize * math.prod(shape[1:])
                size = shape[0] * row_bytes
                before = length_prefix(_RAW_OUTPUTS, size)
                parts.append(_Part(spec.name, row_bytes, before, is_quick=not is_large_raw(size)))
        head = self._base + response.SerializeToString()
        if len(self._parts) >= _HEADS_KEPT:
            self._parts.clear()
            self._only.clear()
        found = self._parts[key] = (parts[0]._replace(before=head + parts[0].before), *parts[1:])
        if self._fixed and len(found) == 1 and found[0].is_quick:
            self._only[answer.stop - answer.start] = found[0]
        return found

    def _typed_outputs(self, answer: Answer) -> bytes:
        response = InferResponse()
        for spec in self._specs:
            tensor = answer.tensor(spec.name)
            datatype = datatype_name(spec)
            output = response.outputs.add(name=spec.name, datatype=datatype, shape=tensor.shape)
            getattr(output.contents, CONTENTS[datatype]).extend(tensor.ravel().tolist())
        written: bytes = response.SerializeToString()
        return written
