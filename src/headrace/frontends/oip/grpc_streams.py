"""The responses of ModelStreamInfer: to a request, to a failed one, and to one that is answered in parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, final

import numpy as np

from headrace.base.errors import HeadraceError
from headrace.base.tensors import Buffer, held_bytes
from headrace.batching.request import Answer
from headrace.frontends.calls import Following, GrpcCall, Streamed, told
from headrace.frontends.oip.request_messages import REQUEST_ID
from headrace.frontends.oip.response_messages import InferResponse
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_fields import LENGTH_DELIMITED, fields, length_prefix
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.tensor_templates import MOST_FIELDS
from headrace.telemetry.outcomes import LEFT

if TYPE_CHECKING:
    from headrace.frontends.oip.request_messages import Inference
    from headrace.frontends.service import Service
    from headrace.lifecycle.leases import Lease
    from headrace.serving.loaded_version import LoadedVersion

_INFER_RESPONSE = 2  # ModelStreamInferResponse.infer_response

_FINAL_PARAMETER = "triton_final_response"
"""Triton's response parameter that tells whether this is the last response to a request."""


def _final(*, is_final: bool) -> bytes:
    said = InferResponse()
    said.parameters[_FINAL_PARAMETER].bool_param = is_final
    written: bytes = said.SerializeToString()
    return written


FINAL = _final(is_final=True)
"""The parameter of the last response to a request, to be appended to it."""

_NOT_FINAL = _final(is_final=False)


def in_stream(response: bytes) -> bytes:
    """Return a ModelInferResponse as a response of the stream."""
    return length_prefix(_INFER_RESPONSE, len(response)) + response


def stream_error(message: bytes, error: HeadraceError) -> bytes:
    """Return the response to a failed request of a stream; the stream continues.

    Args:
        message: The request, whose id is returned if it can be read.
        error: The error.
    """
    request_id = ""
    try:
        for field in fields(message, steps=iter(range(MOST_FIELDS))):
            if field.number == REQUEST_ID and field.wire_type == LENGTH_DELIMITED:
                request_id = message[field.start : field.stop].decode()
    except ValueError:
        pass  # a malformed message is what ``error`` reports
    return _error_response(request_id, error)


def _error_response(request_id: str, error: HeadraceError) -> bytes:
    response = protos.message("inference.ModelStreamInferResponse")(
        error_message=told(error), infer_response={"id": request_id}
    )
    written: bytes = response.SerializeToString()
    return written


def _size(column: Buffer) -> int:
    return held_bytes(column) if isinstance(column, np.ndarray) else len(column)


@final
class Parts(Streamed):
    """A request that is answered in parts, once its turn in the stream comes.

    It holds its version until its last response, or until the version's streams are ended; ``drop`` releases
    the version. The request's call ends with the last response.
    """

    def __init__(
        self,
        service: Service,
        found: Inference,
        lease: Lease[LoadedVersion],
        call: GrpcCall,
        write: Callable[[Answer], Awaitable[bytes]],
    ) -> None:
        """Hold a request.

        Args:
            service: The Service.
            found: The decoded request.
            lease: Holds its version.
            call: Its call.
            write: Serializes an answer as a ModelInferResponse.
        """
        self._service = service
        self._found = found
        self._lease = lease
        self._call = call
        self._write = write
        self._has_begun = False

    def drop(self) -> None:
        """End the request if its turn has not come: the client has left."""
        if not self._has_begun:
            self._has_begun = True
            self._lease.release()
            self._service.outcomes.failed(self._call, LEFT)

    async def responses(self) -> AsyncGenerator[bytes, None]:
        """Yield the responses of the stream, at least one; all but the first as ``Following``."""
        self._has_begun = True
        outcomes, call = self._service.outcomes, self._call
        kind: type[bytes] = bytes
        try:
            async with aclosing(self._infer_responses()) as responses:
                async for response in responses:
                    yield kind(in_stream(response))
                    kind = Following
        except HeadraceError as error:
            outcomes.failed(call, error)
            yield kind(_error_response(self._found.request_id, error))
        except BaseException as error:
            outcomes.failed(call, error)
            raise
        else:
            outcomes.answered(call)
        finally:
            self._lease.release()

    async def _infer_responses(self) -> AsyncGenerator[bytes, None]:
        found, loaded, has_parts = self._found, self._lease.loaded, False
        # The transport releases the message at the first response, and the generator keeps its inputs.
        with RequestBudget.of(self._service.limits, self._call) as budget:
            budget.hold(sum(map(_size, found.inputs.columns)))
            with closing(self._service.parts(loaded, found.inputs, found.deadline, self._call)) as parts:
                async for answer in parts:
                    yield await self._write(answer) + _NOT_FINAL
                    has_parts = True
        if found.wants_final or not has_parts:
            ending = InferResponse(
                id=found.request_id, model_name=loaded.name, model_version=str(loaded.version)
            )
            yield ending.SerializeToString() + FINAL
