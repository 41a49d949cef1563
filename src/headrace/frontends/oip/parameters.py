"""The version and the parameters of a request, over REST and gRPC."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.base.errors import InvalidRequest, Unsupported, listed, shown
from headrace.batching.request import NO_DEADLINE
from headrace.frontends.wire.protos import Message
from headrace.model.misfits import said

SIGNATURE_PARAMETER = "signature_name"
"""The request parameter that names the signature to call; an extension of the protocol."""

FINAL_PARAMETER = "triton_enable_empty_final_response"
"""Triton's request parameter that asks for an empty last response where a model answers in parts."""

ANSWERED_BY_PARAMETER = "headrace_answered_by"
"""The response parameter that names who answered, if not the requested model."""

_PLAIN_CONTENT = ("np", "str", "pd")
"""MLServer's content types that do not change how the data is read."""

_SHOWN = 40

_MICROSECONDS_END = 1 << 64

_MICROSECOND = 1e-6


def deadline_after(microseconds: int) -> float:
    """Return the deadline of a request with a timeout parameter; none for 0, as in Triton.

    Raises:
        InvalidRequest: The timeout is negative, or does not fit in 64 bits.
    """
    if not 0 <= microseconds < _MICROSECONDS_END:
        raise InvalidRequest(
            f"expected microseconds from 0 to 2^64 - 1, got {said(microseconds)}", field="timeout"
        )
    return time.monotonic() + microseconds * _MICROSECOND if microseconds else NO_DEADLINE


def version_number(text: str) -> int | None:
    """Return the version that a request names; None for the default one.

    Raises:
        InvalidRequest: The version is not a number.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(1 << 63))):
        raise InvalidRequest(
            f"expected a number, got {text!r:.40}; leave it empty for the default", field="version"
        )
    return int(text)


def refuse_parameters(parameters: Mapping[str, Any], field: str) -> None:
    """Refuse parameters that change the meaning of data; ignore all others, as the protocol allows.

    Args:
        parameters: The parameters by name: JSON, or messages.
        field: Name of the tensor that has them, or ``parameters`` for those of the request.

    Raises:
        Unsupported: One asks for shared memory, classification or a sequence, or names an unsupported
            content_type.
    """
    for name in parameters:
        if name == "content_type":
            _refuse_content(_text_of(parameters[name]), field)
        if name.startswith("sequence_"):
            raise Unsupported(
                f"{field}: sequences are not supported, as models keep no state between requests; omit "
                f"{shown(name)}, and send all that the model needs with each request"
            )
        if name.startswith("shared_memory_"):
            raise Unsupported(
                f"{field}: shared memory is not supported; send and receive tensors in the messages"
            )
        if name == "classification":
            raise Unsupported(
                f"{field}: classification is not supported; ask for the output and rank it yourself"
            )


def _text_of(parameter: Any) -> str:
    """Return the text of a parameter; for JSON that is no string, the start of the JSON."""
    if not isinstance(parameter, msgspec.Raw):
        return str(parameter.string_param)
    text = bytes(parameter)
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.MsgspecError:
        return text[:_SHOWN].decode(errors="replace")


def _refuse_content(content: str, field: str) -> None:
    if content in _PLAIN_CONTENT:
        return
    way_out = "decode it before sending"
    if content == "base64":
        way_out = "send the bytes themselves, as binary data after the JSON or over gRPC"
    raise Unsupported(
        f"{field}: content_type {shown(content)} is not supported: expected {listed(_PLAIN_CONTENT)}, which "
        f"leave the data as it is; {way_out}"
    )


def signature_parameter(parameters: Message) -> str:
    """Return the signature that a gRPC request's parameters name; "" for the default one.

    Raises:
        InvalidRequest: The parameter is not a string.
    """
    given = parameters.get(SIGNATURE_PARAMETER) if parameters else None
    if given is None:
        return ""
    chosen = given.WhichOneof("parameter_choice")
    if chosen != "string_param":
        raise InvalidRequest(f"expected a name as string_param, got {chosen}", field=SIGNATURE_PARAMETER)
    return str(given.string_param)


def timeout_parameter(parameters: Message) -> float:
    """Return the deadline that a gRPC request's parameters set; none without a timeout.

    Raises:
        InvalidRequest: The timeout is not a number of microseconds.
    """
    timeout = parameters.get("timeout")
    if timeout is None:
        return NO_DEADLINE
    chosen = timeout.WhichOneof("parameter_choice")
    if chosen not in ("int64_param", "uint64_param"):
        raise InvalidRequest(f"expected microseconds as int64_param, got {chosen}", field="timeout")
    return deadline_after(getattr(timeout, chosen))


def final_parameter(parameters: Message) -> bool:
    """Return whether a gRPC request's parameters ask for an empty last response.

    Raises:
        InvalidRequest: The parameter is not a boolean.
    """
    given = parameters.get(FINAL_PARAMETER)
    if given is None:
        return False
    chosen = given.WhichOneof("parameter_choice")
    if chosen != "bool_param":
        raise InvalidRequest(f"expected true or false as bool_param, got {chosen}", field=FINAL_PARAMETER)
    return bool(given.bool_param)
