"""What a request says beside its tensors."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidRequest, Unsupported
from headrace.frontends.oip.parameters import refuse_parameters, version_number


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
        refuse_parameters(["other", name], "x")
    refuse_parameters(["other"], "x")
