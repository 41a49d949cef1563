"""What the protocol says of inputs and outputs."""

from __future__ import annotations

from headrace.frontends.oip.datatypes import metadata_shape
from headrace.model.servable import Signature
from tests.unit.frontends.oip.doubles import spec


def test_metadata_shapes_say_minus_one_for_what_may_vary() -> None:
    inputs = (spec("a", "FP32", 2), spec("b", "INT64", None))
    varying = Signature("serving_default", inputs, ())
    assert metadata_shape(varying, varying.inputs[1]) == [-1, -1]
    fixed = Signature("serving_default", inputs, (), rows=1)
    assert metadata_shape(fixed, fixed.inputs[0]) == [1, 2]
