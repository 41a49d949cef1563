"""The fields of serialized messages, walked."""

from __future__ import annotations

import pytest

from headrace.frontends.wire.protobuf_fields import fields


def test_walks_can_share_a_number_of_steps() -> None:
    steps = iter(range(10))
    assert len(list(fields(b"\x1a\x00" * 6, steps=steps))) == 6
    with pytest.raises(ValueError, match="too many fields"):
        list(fields(b"\x1a\x00" * 5, steps=steps))
