"""What ``headrace serve`` makes of its settings before it serves."""

from __future__ import annotations

from argparse import Namespace

import pytest

from headrace.cli.serve import within_memory
from headrace.config import ServerConfig, server_config, with_flags
from headrace.workers import worker_shares

MIB = 2**20
KEY = "limits.max_inflight_bytes"


@pytest.mark.parametrize(
    ("table", "flags", "allowed", "expected", "of_four"),
    [
        ({}, {}, None, 512, 128),
        ({}, {}, 16384, 512, 128),
        ({}, {}, 1024, 256, 64),
        ({}, {}, 100, 64, 64),
        ({"max_message_bytes": 8 * MIB}, {}, 100, 25, 8),
        ({"max_inflight_bytes": 400 * MIB}, {}, 1024, 400, 100),
        ({}, {KEY: 512 * MIB}, 1024, 512, 128),
    ],
    ids=[
        "nobody knows",
        "plenty",
        "a quarter",
        "the largest message fits",
        "and smaller messages in less",
        "set in a file",
        "set as an option, to what is the default",
    ],
)
def test_request_memory_is_at_most_a_quarter_of_the_memory_by_default(
    table: dict[str, object], flags: dict[str, int], allowed: int | None, expected: int, of_four: int
) -> None:
    given = {"limits": table} if table else {}
    config = with_flags(server_config(given, "a file", base=None), **flags)  # type: ignore[arg-type]
    options = Namespace(origins=dict.fromkeys(flags, "an option"), own_settings=given)
    found = within_memory(options, config, None if allowed is None else allowed * MIB)
    assert found.limits.max_inflight_bytes == expected * MIB
    assert worker_shares.of_server(found, 4).limits.max_inflight_bytes == of_four * MIB
    assert found.limits.max_message_bytes == ServerConfig().limits.max_message_bytes or table
