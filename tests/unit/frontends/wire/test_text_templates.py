"""Messages with texts are recognised by their outline, and give what parsing gives."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.batching.request import NO_DEADLINE
from headrace.frontends.oip.request_messages import InferDecoder, Inference
from headrace.frontends.tfserving.messages import PredictDecoder
from headrace.frontends.wire import text_templates
from headrace.frontends.wire.tensors import SPREAD_BYTES
from headrace.model import packed_kernels
from headrace.model.packed_columns import PackedColumns
from tests.unit.frontends import decoding
from tests.unit.frontends.oip.doubles import LoadedDouble
from tests.unit.frontends.tfserving.doubles import ServiceDouble
from tests.unit.frontends.words import Texts, infer_request, plain, predict_request, words

PROTOCOLS = ["infer", "predict"]


class Door:
    """One protocol's decoder."""

    def __init__(self, protocol: str, *versions: LoadedDouble) -> None:
        self.service = ServiceDouble(*versions or (words(),))
        self.decoder: Any
        if protocol == "infer":
            self.decoder, self.make = InferDecoder(self.service.loaded), infer_request
        else:
            self.decoder, self.make = PredictDecoder(self.service), predict_request
        self._decode = getattr(decoding, protocol)

    def decode(self, users: Texts, words: Texts, **more: Any) -> Any:
        return self._decode(self.decoder, self.make(users, words, **more))

    def recognised(self, users: Texts, words: Texts, **more: Any) -> Any:
        found = self.decoder.recognise(self.make(users, words, **more))
        return None if found is None else Inference(*found, NO_DEADLINE)


def seen(found: Any) -> list[Any]:
    return list(map(plain, found.inputs.columns))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_texts_of_other_lengths_are_recognised_and_give_what_parsing_gives(protocol: str) -> None:
    door = Door(protocol)
    door.decode([b"ann"], [b"red", b"car"])
    other = [b"somebody else"], [b"", b"\xff" * 300]
    found = door.recognised(*other, price=2.0)
    assert isinstance(found.inputs.columns, PackedColumns)
    assert found.inputs.columns.text_bytes == 313
    parsed = Door(protocol).decode(*other, price=2.0)
    assert not isinstance(parsed.inputs.columns, PackedColumns)
    assert seen(found) == seen(parsed)
    assert found.inputs.layout.shapes == parsed.inputs.layout.shapes
    assert found.inputs.rows == parsed.inputs.rows == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_text_stands_for_all_rows_up_to_a_size(protocol: str) -> None:
    door = Door(protocol)
    door.decode([b"ann"], [b"word"] * 200)
    found = door.recognised([b"bob"], [b"other"] * 200)
    assert seen(found) == seen(Door(protocol).decode([b"bob"], [b"other"] * 200))
    assert found.inputs.columns.text_bytes == 100 * 3 + 200 * 5
    assert door.recognised([b"x" * (SPREAD_BYTES // 100)], [b"word"] * 200) is None  # it is counted each time


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_takes_more_than_it_came_with_is_counted_each_time(protocol: str) -> None:
    door = Door(protocol)
    door.decode([b"ann"], [b"long words"] * 40)
    assert door.recognised([b"bob"], [b"other word"] * 40) is not None
    assert door.recognised([b"bob"], [b""] * 40) is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_models_that_want_objects_get_them(protocol: str) -> None:
    door = Door(protocol, words(takes_packed=False))
    for _ in range(2):
        found = door.decode([b"ann"], [b"red", b"car"])
        assert not isinstance(found.inputs.columns, PackedColumns)
    assert door.recognised([b"ann"], [b"red", b"car"]) is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_another_version_is_asked_anew(protocol: str) -> None:
    door = Door(protocol)
    door.decode([b"ann"], [b"red", b"car"])
    assert door.recognised([b"ann"], [b"red", b"car"]) is not None
    newer = words()
    door.service.versions["words", 4] = newer
    assert door.recognised([b"ann"], [b"red", b"car"]) is None
    assert door.decode([b"ann"], [b"red", b"car"]).loaded is newer
    assert door.recognised([b"bob"], [b"red", b"car"]).loaded is newer


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_loading_a_version_has_compiled_what_its_messages_need(protocol: str) -> None:
    packed_kernels.run_once()
    door = Door(protocol)
    door.decode([b"ann"], [b"red", b"car"])
    assert door.recognised([b"bob"], [b"blue", b"car"]) is not None
    assert door.decoder.recognise(b"") is None
    assert [len(kernel.signatures) for kernel in (packed_kernels.outline, packed_kernels.arrange)] == [1, 1]


def test_ids_of_any_length_are_echoed() -> None:
    door = Door("infer")
    door.decode([b"ann"], [b"red", b"car"], request_id="1")
    assert door.recognised([b"bob"], [b"red", b"car"], request_id="ключ").request_id == "ключ"
    assert door.recognised([b"bob"], [b"red", b"car"]) is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_kind_more_than_are_kept_costs_the_oldest_and_no_other(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_templates, "TEMPLATES_KEPT", 3)
    door = Door(protocol)
    for rows in (1, 2, 3, 4):
        door.decode([b"somebody"], [b"any word"] * 2 * rows)
    seen = [door.recognised([b"somebody"], [b"any word"] * 2 * rows) is not None for rows in (1, 2, 3, 4)]
    assert seen == [False, True, True, True]
