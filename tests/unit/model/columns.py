"""A request's inputs, packed as the codecs pack them."""

from __future__ import annotations

import numpy as np

from headrace.base.tensors import STRING, Tensors
from headrace.model.packed_columns import HEAD, PLACE, PackedColumns, PackedInput
from headrace.model.servable import Signature


def packed_columns(signature: Signature, inputs: Tensors) -> PackedColumns:
    """Put all values into one message, numbers after texts, and say where each is."""
    message, texts, numbers = b"head", list[int](), list[int]()
    places: dict[str, tuple[int, int]] = {}
    rows = len(inputs[signature.inputs[0].name])
    counted = [spec.name for spec in signature.inputs if spec.dtype == STRING]
    head = HEAD + len(counted)
    for name in counted:
        values = inputs[name].ravel().tolist()
        places[name] = head + len(texts), len(values)
        for value in values:
            texts += [len(message), len(value)]
            message += value
    for spec in signature.inputs:
        if spec.dtype != STRING:
            raw = inputs[spec.name].astype(spec.dtype).tobytes()
            places[spec.name] = head + len(texts) + len(numbers), len(raw)
            numbers += [len(message), len(message) + len(raw)]
            message += raw
    size = head + len(texts) + len(numbers)
    written = np.array([size, rows, len(message), *[rows] * len(counted), *texts, *numbers], PLACE)
    found = []
    for spec in signature.inputs:
        first, count = places[spec.name]
        shape = inputs[spec.name].shape
        found.append(PackedInput(spec.dtype == STRING, first, count, shape, shape[0]))
    return PackedColumns(message, written, tuple(found), sum(texts[1::2]))
