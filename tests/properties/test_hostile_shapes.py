"""What decoding costs is linear in the bytes, in time and in memory, whatever shape they have.

A table of shapes for each decoder: each makes a body of about so many bytes. A byte of the largest must cost
about what a byte of the middle one costs. The calls of functions are counted. Tests marked `timing` measure
the processor's time, the least of several runs.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.tensors import STRING
from headrace.config import Limits
from headrace.frontends.calls import HttpCall
from headrace.frontends.oip import rest as oip_rest
from headrace.frontends.oip.infer_bodies import JSON_LENGTH_HEADER
from headrace.frontends.tfserving import rest as tfserving_rest
from headrace.frontends.transport.rest_routes import Router
from headrace.frontends.wire.compression import opening
from headrace.frontends.wire.time_slicer import run
from tests.faults.worst_bodies import GOOD, WORST, Worst
from tests.properties.calls import check_calls_are_linear
from tests.properties.costs import check_time_is_linear, peak_bytes
from tests.unit.frontends.oip.doubles import LoadedDouble, echo
from tests.unit.frontends.tfserving.doubles import ServiceDouble, classifier

MIDDLE, LARGEST = 256 * 1024, 1024 * 1024
RUNS = 3
MOST_GROWTH = 2.5  # of what a byte costs, over four times the bytes: 4 would be quadratic
MOST_SECONDS_A_BYTE = 6e-6  # four times what the worst takes, which docs/limits.md says: 1.4 µs
MOST_MEMORY_A_BYTE = 100  # measured: 25 for empty lists, 75 for lists nested 60 deep, of two bytes each


@dataclass(frozen=True)
class Shape:
    """One kind of input of one decoder.

    Attributes:
        name: What it is called in a failing test.
        make: Makes one of about so many bytes.
        decode: Decodes or refuses it.
        ends: What the error says that refuses it; empty where it is answered.
    """

    name: str
    make: Callable[[int], bytes]
    decode: Callable[[bytes], object]
    ends: str = ""


def leaving_out(model: LoadedDouble) -> LoadedDouble:
    """A model in whose inputs values may be left out, under another name."""
    (signature,) = model.signatures.values()
    inputs = tuple(
        replace(one, absent="" if one.dtype == STRING else -1.0, shorter=bool(one.shape))
        for one in signature.inputs
    )
    model.signatures = {signature.name: replace(signature, inputs=inputs, _layouts={})}
    model.name += " leaving out"
    return model


def door() -> ServiceDouble:
    """A door to models that take numbers, texts and examples; nothing is too much for it."""
    service = ServiceDouble(
        echo("FP32", name="half_plus_two"),
        echo("BYTES", name="words"),
        echo("FP32", 64, name="wide"),
        classifier(),
        leaving_out(echo("FP32", name="x")),
        leaving_out(echo("FP32", 2, name="xs")),
        leaving_out(classifier()),
    )
    service.limits = Limits(max_values=1 << 30)
    return service


DOOR = door()
ROUTES = Router([*tfserving_rest.http_routes(DOOR), *oip_rest.http_routes(DOOR)])


def post(path: str) -> Callable[[bytes], object]:
    """Decode and answer as REST does; JSON ends with a line where raw tensors come after it."""
    match = ROUTES.match("POST", path)
    assert match.handler is not None

    def decode(body: bytes) -> object:
        async def answer() -> object:
            assert match.handler is not None
            length = body.find(b"\n") + 1
            headers = ((JSON_LENGTH_HEADER, b"%d" % length),) if length else ()
            return await match.handler(HttpCall("POST", path, match.parameters, headers, body))

        return asyncio.run(answer())

    return decode


def unzip(body: bytes) -> object:
    """Open a compressed body."""
    return run(opening(body, Limits(max_expansion=1 << 20)))


def context(size: int) -> bytes:
    """Half of it one text of the context, half of it examples."""
    return (
        b'{"context":{"city":"'
        + b"x" * 1000
        + b'"},"examples":['
        + b'{"age":1},' * (size // 10)
        + b'{"age":1}]}'
    )


def rows(unit: bytes) -> Callable[[int], bytes]:
    """A row many times."""
    return Worst("", "", b'{"instances":[', unit, b"]}").body


def examples(size: int) -> bytes:
    """Examples without features, with bytes enough for what is put in."""
    return Worst("", "", b'{"examples":[', b"{         },", b"]}").body(size)


def many_names(size: int) -> bytes:
    """As many inputs, none of which is there."""
    return b'{"inputs":{' + b",".join(b'"k%d":0' % index for index in range(size // 11)) + b"}}"


def flat(unit: bytes) -> Callable[[int], bytes]:
    """Values one behind the other, of an input in which values may be left out."""
    start = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"data":['
    return lambda size: start % (size // len(unit)) + (unit * (size // len(unit)))[:-1] + b"]}]}"


def binary_texts(size: int) -> bytes:
    """Texts of one byte each, raw."""
    count = size // 5
    tensor = b'"name":"x","datatype":"BYTES","shape":[%d],"parameters":{"binary_data_size":%d}'
    return b'{"inputs":[{' + tensor % (count, 5 * count) + b"}]}\n" + b"\1\0\0\0a" * count


def ignored(unit: bytes) -> Callable[[int], bytes]:
    """What a request holds that nobody asks for; it is parsed to its end."""
    one = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"more":['
    return lambda size: one + (unit * (size // len(unit)))[:-1] + b"]}"


WORDS = "/v1/models/words:predict"
INFER = "/v2/models/half_plus_two/infer"
MUCH_BESIDE = "body: expected at most 8208 names, shapes"
NO_LIST = r"x: expected x FP32 \[rows\]"
A_LIST = r"x: row 0: expected a number \(FP32\), got a list; the input is x FP32 \[rows\]"
ENDS = {
    "escaped quotes in deep lists": "body: expected JSON nested at most 64 deep",
    "long integers": "got a larger number",
    "empty lists": A_LIST,
    "empty lists without commas": "body: expected JSON: a comma is missing before byte 16",
    "empty lists in deep ones": A_LIST,
    "lists of one": A_LIST,
    "deep lists": A_LIST,
    "objects": r"instances\[0\]: missing 'x', unexpected 'a'",
    "equal names": "inputs: missing input 'x', unknown input 'a'",
    "examples without features": "age: example 0 lacks it",
    "inputs of one name": "inputs: expected at most 1, got",
    "tiny numbers, flat": r"x: expected 1 value for the shape \[1\], got",
}
"""How the worst bodies end that no model takes; those that are refused early come again below, where they are
read to their ends."""

JSON = [
    Shape(one.name, one.body, post(one.path.replace("price", "people")), ENDS.get(one.name, ""))
    for one in (*WORST, *GOOD)
]
DEEP_QUOTES = b"[" * 60 + b'"' + b'\\"' * 60 + b'"' + b"]" * 60 + b","
PEOPLE = "/v1/models/people leaving out:regress"
READ_TO_THEIR_ENDS = [
    Shape("ignored quotes in deep lists", ignored(DEEP_QUOTES), post(INFER), MUCH_BESIDE),
    Shape("ignored deep lists", ignored(b"[" * 60 + b"]" * 60 + b","), post(INFER), MUCH_BESIDE),
    Shape("ignored empty lists", ignored(b"[],"), post(INFER), MUCH_BESIDE),
    Shape("ignored objects", ignored(b'{"a":[]},'), post(INFER), MUCH_BESIDE),
    Shape("ignored long integers", ignored(b"9" * 300 + b","), post(INFER), MUCH_BESIDE),
    Shape("rows that are empty lists", rows(b"[      ],"), post("/v1/models/xs leaving out:predict")),
    Shape("rows that are lists of one", rows(b"[0.25],"), post("/v1/models/xs leaving out:predict")),
    Shape("rows that are objects", rows(b'{"x":1},'), post("/v1/models/half_plus_two:predict")),
    Shape("examples that may lack features", examples, post(PEOPLE)),
    Shape("flat values that may be left out", flat(b"1.5,"), post("/v2/models/x leaving out/infer")),
    Shape("flat nulls", flat(b"null,"), post("/v2/models/x leaving out/infer")),
    Shape("lists that are shorter", flat(b"[0.25],"), post("/v2/models/xs leaving out/infer")),
    Shape("binary texts", binary_texts, post("/v2/models/words/infer")),
    Shape("binary texts for numbers", binary_texts, post(INFER), NO_LIST),
]  # fmt: skip
MORE = [
    Shape("examples in a context", context, post("/v1/models/people:regress")),
    Shape("one base64 text", Worst("", "", b'{"instances":[{"b64":"', b"AAAA", b'"}]}').body, post(WORDS)),
    Shape("many names", many_names, post("/v1/models/half_plus_two:predict"), "inputs: missing input 'x'"),
    Shape("backslashes", Worst("", "", b'{"instances":["', b"\\", b"").body, post(WORDS), "body: .* within"),
    Shape("gzip of zeros", lambda size: gzip.compress(bytes(size)), unzip),
    Shape("gzip of numbers", lambda size: gzip.compress(GOOD[0].body(size)), unzip),
]  # fmt: skip
SHAPES = [*JSON, *READ_TO_THEIR_ENDS, *MORE]


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_calls_of_functions_are_linear_in_the_bytes(shape: Shape) -> None:
    given = {size: shape.make(size) for size in (MIDDLE, 2 * MIDDLE)}
    check_calls_are_linear(lambda size: decoded(shape, given[size]), MIDDLE)


@pytest.mark.timing
@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_time_is_linear_in_the_bytes(shape: Shape) -> None:
    given = {size: shape.make(size) for size in (MIDDLE, LARGEST)}
    check_time_is_linear(
        lambda size: seconds(shape, given[size]),
        *(MIDDLE, LARGEST),
        most_growth=MOST_GROWTH,
        most_seconds=MOST_SECONDS_A_BYTE,
    )


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_memory_is_a_small_factor_of_the_bytes(shape: Shape) -> None:
    body = shape.make(MIDDLE)
    opened = MIDDLE if shape.decode is unzip else len(body)
    assert peak_bytes(lambda: decoded(shape, body)) < MOST_MEMORY_A_BYTE * opened + 4 * 2**20


def decoded(shape: Shape, body: bytes) -> Any:
    """What it decodes to, or the error that refuses it; it ends as it shall."""
    found: Any
    try:
        found, said = shape.decode(body), ""
    except HeadraceError as error:
        found, said = error, error.message
    assert bool(said) == bool(shape.ends), said[:200]
    assert re.search(shape.ends, said), said[:200]
    return found


def seconds(shape: Shape, body: bytes) -> float:
    """The least processor time that it took."""
    times = []
    gc.disable()  # it looks at everything that this whole process of tests holds
    try:
        for _ in range(RUNS):
            started = time.thread_time()
            decoded(shape, body)
            times.append(time.thread_time() - started)
    finally:
        gc.enable()
    return min(times)
