"""The worst JSON bodies that were found, by what each byte of them costs; and good ones of the same size.

They are for the models of ``write_models``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.faults.still_serves import http_request
from tests.model_directories import mean, write, write_menagerie

SIZE = 64 * 1024
_PREDICT = "/v1/models/half_plus_two:predict"
_WORDS = "/v1/models/words:predict"
_WIDE = "/v1/models/wide:predict"
_WIDE_INFER = "/v2/models/wide/infer"
_WIDE_VALUES = 64
_LARGE_ROWS = 15_000
_INFER = "/v2/models/half_plus_two/infer"
_HALFWAY = b"9007199254740993"  # half between two doubles: each digit counts

_ONE_INPUT = b'{"name":"x","datatype":"FP32","shape":[1],"data":'


@dataclass(frozen=True)
class Worst:
    """One kind of body.

    Attributes:
        name: What it is called.
        path: Where it is sent.
        start: How it begins.
        unit: What is repeated until it is as large as it shall be.
        end: How it ends.
    """

    name: str
    path: str
    start: bytes
    unit: bytes
    end: bytes

    def body(self, size: int = SIZE) -> bytes:
        """The body, of about a size."""
        times = (size - len(self.start) - len(self.end)) // len(self.unit)
        return self.start + (self.unit * times).removesuffix(b",") + self.end

    def request(self, size: int = SIZE) -> bytes:
        """The HTTP request with it."""
        return http_request(self.path, self.body(size))

    def packed(self, size: int) -> bytes:
        """The HTTP request with it, compressed."""
        return http_request(self.path, gzip.compress(self.body(size), 6), "content-encoding: gzip")


def _rows(name: str, unit: bytes, path: str = _PREDICT) -> Worst:
    return Worst(name, path, b'{"instances":[', unit, b"]}")


def _wide_row(values: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(values) + b"],"


WORST = (
    Worst("escaped quotes in deep lists", _PREDICT, b'{"instances":' + b"[" * 64 + b'"', b'\\"', b""),
    _rows("tiny numbers", b"1e-320,"),
    _rows("halfway numbers", _HALFWAY + b","),
    _rows("tiny numbers in wide rows", _wide_row([b"1e-320"] * _WIDE_VALUES), _WIDE),
    _rows("halfway numbers in wide rows", _wide_row([_HALFWAY] * _WIDE_VALUES), _WIDE),
    _rows("long fractions", b"0." + b"0" * 300 + b"1234567,"),
    _rows("long integers", b"9" * 4000 + b","),
    _rows("NaN", b"NaN,"),
    _rows("empty lists", b"[],"),
    _rows("empty lists without commas", b"[]"),
    Worst("empty lists in deep ones", _PREDICT, b'{"instances":' + b"[" * 60, b"[],", b"]" * 60 + b"}"),
    _rows("lists of one", b"[0],"),
    _rows("deep lists", b"[" * 60 + b"]" * 60 + b","),
    _rows("objects", b'{"a":[]},'),
    _rows("empty texts", b'"",', _WORDS),
    _rows("base64", b'{"b64":""},', _WORDS),
    _rows("escapes", b'"\\u0000",', _WORDS),
    Worst("one text of escapes", _WORDS, b'{"instances":["', b"\\u0000", b'"]}'),
    Worst("surrogates", _WORDS, b'{"instances":["', b"\\ud83d\\ude00", b'"]}'),
    Worst("white space", _PREDICT, b'{"instances":[1', b" ", b"]}"),
    Worst("equal names", _PREDICT, b'{"inputs":{', b'"a":0,', b"}}"),
    Worst("examples without features", "/v1/models/price:regress", b'{"examples":[', b"{},", b"]}"),
    Worst("inputs of one name", _INFER, b'{"inputs":[', _ONE_INPUT + b"[1]},", b"]}"),
    Worst("tiny numbers, flat", _INFER, b'{"inputs":[' + _ONE_INPUT + b"[", b"1e-320,", b"]}]}"),
)  # fmt: skip

GOOD = (
    _rows(
        "good numbers", _wide_row(b"%.7f" % random() for random in [Random(1).random] * _WIDE_VALUES), _WIDE
    ),
    _rows("good texts", b'"some words, as they are in texts",', _WORDS),
)


def write_models(directory: Path) -> None:
    """The models that these bodies are for.

    Args:
        directory: Where they are written.
    """
    write_menagerie(directory)
    write(directory, "wide", 1, mean(_WIDE_VALUES))


def large_text(size: int) -> bytes:
    """A legal request of a thousand texts."""
    text = "word " * (size // 5000)
    return http_request(_WORDS, json.dumps({"instances": [text] * 1000}).encode())


def too_many_binary_texts(size: int) -> bytes:
    """A million texts in raw form: more rows than a queue takes, which is seen once they are decoded."""
    count = 1_000_000
    return binary_texts(count, size // count - 4)


def binary_texts(count: int, length: int, *, binary_answer: bool = True) -> bytes:
    """A request of equal texts in raw form.

    Args:
        count: How many.
        length: How long each is.
        binary_answer: Whether they are wanted back in raw form, or else in JSON.
    """
    raw = (length.to_bytes(4, "little") + b"w" * length) * count
    tensor = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [count],
        "parameters": {"binary_data_size": len(raw)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": binary_answer}}).encode()
    return http_request("/v2/models/words/infer", head + raw, f"inference-header-content-length: {len(head)}")


def large_numbers(size: int, form: str) -> bytes:
    """A legal request of a million numbers, nearly as many as a request may have.

    Args:
        size: How large it is: spaces fill it up.
        form: "rows" or "columns" of TensorFlow Serving's API, "flat" or "nested" of the other.
    """
    values = _LARGE_ROWS * _WIDE_VALUES
    one = b"0.12345678901234567".ljust(size // values - 2)
    row = b"[" + b",".join([one] * _WIDE_VALUES) + b"]"
    start = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d,%d],"data":[' % (_LARGE_ROWS, _WIDE_VALUES)
    path, start, unit, end = {
        "rows": (_WIDE, b'{"instances":[', row, b"]}"),
        "columns": (_WIDE, b'{"inputs":[', row, b"]}"),
        "flat": (_WIDE_INFER, start, row[1:-1], b"]}]}"),
        "nested": (_WIDE_INFER, start, row, b"]}]}"),
    }[form]
    return http_request(path, start + b",".join([unit] * _LARGE_ROWS) + end)
