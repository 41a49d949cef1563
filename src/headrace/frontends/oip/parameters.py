"""What a request says beside its tensors, over REST and gRPC: its version, and its parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.batching.request import NO_DEADLINE
from headrace.errors import InvalidRequest, Unsupported, listed, shown
from headrace.frontends.wire.protos import Message

SIGNATURE_PARAMETER = "signature_name"
"""The parameter of a request that says which signature it calls; the protocol itself knows only one."""

ANSWERED_BY_PARAMETER = "headrace_answered_by"
"""The parameter of a response that says who answered, if that is not the model asked."""

_PLAIN_CONTENT = ("np", "str", "pd")
"""The codecs of MLServer whose data is what datatype and shape say."""

_SHOWN = 40

_MICROSECONDS_END = 1 << 64

_MICROSECOND = 1e-6


def deadline_after(microseconds: int) -> float:
    """The deadline of a request with a timeout parameter; none for 0, as in Triton.

    Raises:
        InvalidRequest: It is negative, or no number of 64 bits.
    """
    if not 0 <= microseconds < _MICROSECONDS_END:
        raise InvalidRequest(f"expected microseconds from 0 to 2^64 - 1, got {microseconds}", field="timeout")
    return time.monotonic() + microseconds * _MICROSECOND if microseconds else NO_DEADLINE


def version_number(text: str) -> int | None:
    """The version that a request names; None for the default one.

    Raises:
        InvalidRequest: It is not a number.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(1 << 63))):
        raise InvalidRequest(
            f"expected a number, got {text!r:.40}; leave it empty for the default", field="version"
        )
    return int(text)


def refuse_parameters(parameters: Mapping[str, Any], field: str) -> None:
    """Refuse what would change the meaning of data; other parameters are ignored, as the protocol allows.

    Args:
        parameters: The parameters by their names: JSON, or messages.
        field: The tensor that they came with, or ``parameters`` for those of the request.

    Raises:
        Unsupported: One asks for shared memory, classification or a sequence, or says that the data is to be
            decoded.
    """
    for name in parameters:
        if name == "content_type":
            _refuse_content(_text_of(parameters[name]), field)
        if name.startswith("sequence_"):
            raise Unsupported(
                f"{field}: sequences are not supported, as models keep nothing between requests; leave "
                f"{shown(name)} out, and send what the model needs with each request"
            )
        if name.startswith("shared_memory_"):
            raise Unsupported(
                f"{field}: shared memory is not supported; send and take tensors in the messages"
            )
        if name == "classification":
            raise Unsupported(
                f"{field}: classification is not supported; ask for the output and rank it yourself"
            )


def _text_of(parameter: Any) -> str:
    """The text of a parameter; what is none, as JSON has it."""
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
        way_out = "send the bytes themselves, as binary data behind the JSON or over gRPC"
    raise Unsupported(
        f"{field}: content_type {shown(content)} is not supported: expected {listed(_PLAIN_CONTENT)}, which "
        f"leave the data as it is; {way_out}"
    )


def signature_parameter(parameters: Message) -> str:
    """The signature that a gRPC request's parameters name; "" for the default one.

    Raises:
        InvalidRequest: It is no name.
    """
    given = parameters.get(SIGNATURE_PARAMETER) if parameters else None
    if given is None:
        return ""
    chosen = given.WhichOneof("parameter_choice")
    if chosen != "string_param":
        raise InvalidRequest(f"expected a name as string_param, got {chosen}", field=SIGNATURE_PARAMETER)
    return str(given.string_param)


def timeout_parameter(parameters: Message) -> float:
    """The deadline that a gRPC request's parameters set; none where they have no timeout.

    Raises:
        InvalidRequest: It is no number of microseconds.
    """
    timeout = parameters.get("timeout")
    if timeout is None:
        return NO_DEADLINE
    chosen = timeout.WhichOneof("parameter_choice")
    if chosen not in ("int64_param", "uint64_param"):
        raise InvalidRequest(f"expected microseconds as int64_param, got {chosen}", field="timeout")
    return deadline_after(getattr(timeout, chosen))
