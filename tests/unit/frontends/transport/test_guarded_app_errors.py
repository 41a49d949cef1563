"""What is told of what is not there, or does not load, depends on who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.access.permissions import VERBS
from headrace.config import ServerConfig
from headrace.serving.engine import Engine
from tests.model_directories import write
from tests.models import Doubling
from tests.unit.access.keys_of_tests import bearer, entry, gate_of
from tests.unit.frontends.archive.doors import an_archive
from tests.unit.frontends.transport.test_guarded_app import Served, in_server


@pytest.fixture
def archive() -> Iterator[object]:
    with an_archive() as found:
        yield found


@pytest.mark.parametrize("patterns", [["other*"], ["*"]])
def test_a_key_that_permits_what_is_not_there_is_told_of_others_only_if_all_are_its(
    archive: object, patterns: list[str]
) -> None:
    async def check(served: Served) -> None:
        asked = [(f"/v1/models/others{verb}", None) for verb in ("", "/metadata")]
        asked += [(f"/v2/models/others{part}", None) for part in ("", "/stats")]
        asked += [("/v1/models/others:predict", b'{"instances": [[1.0]]}')]
        asked += [("/v1/archive/others", None), ("/v1/archive/others:lookup", b'{"keys": ["k"]}')]
        told = b""
        for path, sent in asked:
            response = await served.ask("POST" if sent else "GET", path, sent or b"", bearer("one"))
            assert response.status == 404, (path, response.body)
            told += response.body
        assert (b"mine" in told) == (b"items" in told) == (patterns == ["*"]), told

    gate = gate_of(entry("one", VERBS, patterns, patterns))
    in_server(gate, check, archive=archive, mine=Doubling())


def test_only_a_key_that_permits_admin_is_told_in_full_why_a_version_does_not_load(tmp_path: Path) -> None:
    broken = (
        "class Model:\n    inputs = outputs = [('x', 'FP32', [])]\n    def __init__(self):\n        1 / 0\n"
    )
    write(tmp_path, "m", 1, broken, "[versions]\nload_attempts = 1\n")
    gate = gate_of(entry("one", ["predict"]), entry("two", ["admin"]))

    async def run() -> None:
        async with Engine(tmp_path, config=ServerConfig(allow_code=True)) as engine:
            served = Served(engine, gate)
            for caller, is_told in (("one", False), ("two", True)):
                for method, path in (("GET", "/v1/models/m"), ("POST", "/v2/repository/index")):
                    response = await served.ask(method, path, b"", bearer(caller))
                    assert b"model.py fails" in response.body
                    assert (b"ZeroDivisionError" in response.body) is is_told, (caller, path)

    asyncio.run(run())
