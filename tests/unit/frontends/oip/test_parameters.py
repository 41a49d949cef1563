"""What a request says beside its tensors."""

from __future__ import annotations

import msgspec
import pytest

from headrace.base.errors import InvalidRequest, Unsupported
from headrace.frontends.oip.parameters import refuse_parameters, version_number
from headrace.frontends.wire import protos

InferParameter = protos.message("inference.InferParameter")


@pytest.mark.parametrize(("text", "number"), [("", None), ("0", 0), ("12", 12), ("007", 7)])
def test_a_version_is_a_number_or_nothing(text: str, number: int | None) -> None:
    assert version_number(text) == number


@pytest.mark.parametrize("text", ["v1", "-1", "1.0", " 1", "٣", "²", "9" * 5000])
def test_a_version_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="version: expected a number"):
        version_number(text)


@pytest.mark.parametrize("name", ["shared_memory_region", "shared_memory_byte_size", "classification"])
def test_shared_memory_and_classification_are_not_supported(name: str) -> None:
    with pytest.raises(Unsupported, match=r"x: .* is not supported; "):
        refuse_parameters({"other": 1, name: 1}, "x")
    refuse_parameters({"other": 1}, "x")


@pytest.mark.parametrize("content", ["np", "str", "pd"])
def test_content_types_that_change_nothing_are_ignored(content: str) -> None:
    refuse_parameters({"content_type": msgspec.Raw(msgspec.json.encode(content))}, "x")
    refuse_parameters({"content_type": InferParameter(string_param=content)}, "x")


@pytest.mark.parametrize("content", ["base64", "datetime", "image/png", "", "é" * 1000])
def test_content_types_that_change_what_data_means_are_refused(content: str) -> None:
    for given in (msgspec.Raw(msgspec.json.encode(content)), InferParameter(string_param=content)):
        with pytest.raises(Unsupported, match=r"x: content_type .* is not supported: expected np, str, pd"):
            refuse_parameters({"content_type": given}, "x")
    with pytest.raises(Unsupported, match="content_type '7'"):
        refuse_parameters({"content_type": msgspec.Raw(b"7")}, "x")


@pytest.mark.parametrize("name", ["sequence_id", "sequence_start", "sequence_end"])
def test_sequences_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=f"parameters: sequences are not supported.*'{name}'"):
        refuse_parameters({name: msgspec.Raw(b"1")}, "parameters")
