"""Decoding a message as the gRPC methods do: recognised if it can be, or else parsed."""

from __future__ import annotations

from typing import Any

from headrace.batching.request import NO_DEADLINE
from headrace.config import Limits
from headrace.frontends.calls import HttpCall
from headrace.frontends.oip import infer_bodies
from headrace.frontends.oip.infer_bodies import JsonInference, json_bytes_of
from headrace.frontends.oip.repeated_bodies import RepeatedBodies
from headrace.frontends.oip.request_messages import InferDecoder, Inference
from headrace.frontends.tfserving.messages import PredictDecoder, Prediction
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.time_slicer import run

LIMITS = Limits()


def infer(
    decoder: InferDecoder, message: bytes, deadline: float = NO_DEADLINE, *, limits: Limits = LIMITS
) -> Inference:
    found = decoder.recognise(message)
    if found is None:
        return run(decoder.parse(message, deadline, RequestBudget(limits)))
    return Inference(*found, deadline)


def predict(decoder: PredictDecoder, message: bytes, *, limits: Limits = LIMITS) -> Prediction:
    found = decoder.recognise(message)
    return parsed(decoder, message, limits=limits) if found is None else Prediction(*found[:3])


def parsed(decoder: PredictDecoder, message: bytes, *, limits: Limits = LIMITS) -> Prediction:
    return run(decoder.parse(message, RequestBudget(limits)))


def decode_body(
    loaded: Any, body: bytes, json_length: bytes | None, repeated: RepeatedBodies | None = None
) -> JsonInference:
    repeated = repeated or RepeatedBodies()
    call = HttpCall("POST", "", {}, body=body)
    json_bytes = json_bytes_of(body, json_length)
    found = repeated.recognise(loaded, call, json_bytes)
    if found is None:
        budget = RequestBudget(LIMITS)
        found = run(infer_bodies.parse(loaded, call, json_bytes, LIMITS.max_json_depth, budget, repeated))
    return found
