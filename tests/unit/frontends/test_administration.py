"""What is administration, where that has a port of its own; each action is told twice.

Loading, unloading and forgetting are administration; feeding is not.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.access.permissions import ADMIN, ARCHIVE_READ, ARCHIVE_WRITE, HEALTH, METRICS, PREDICT
from headrace.base.errors import InvalidRequest
from headrace.batching.request import NO_DEADLINE
from headrace.config import Limits
from headrace.frontends.administration import administrative, audited, public
from headrace.frontends.archive.rest import http_routes
from headrace.frontends.calls import GrpcCall, GrpcMethod, HttpCall, HttpReply, HttpRoute
from headrace.frontends.transport.bodies import Bodies
from headrace.telemetry.audit_log import AuditLog
from headrace.telemetry.outcomes import Outcomes


async def _handler(_: object) -> None:
    """Is never asked here."""


def routes() -> list[HttpRoute]:
    given = (("/load", ADMIN), ("/infer", PREDICT), ("/metrics", METRICS), ("/ready", HEALTH))
    return [HttpRoute("POST", path, _handler, verbs) for path, verbs in given]  # type: ignore[arg-type]


def test_loading_is_refused_in_public_and_predictions_are_not_served_apart() -> None:
    shown, _ = public(routes(), [], metrics=False)
    assert {one.pattern: one.handler is _handler for one in shown} == {
        "/load": False,
        "/infer": True,
        "/ready": True,
    }
    apart, _ = administrative(routes(), [])
    assert [one.pattern for one in apart] == ["/load", "/metrics", "/ready"]


def test_an_archive_is_fed_in_public_and_forgets_apart() -> None:
    door = SimpleNamespace(limits=Limits())  # nothing else is asked of it
    archive = http_routes(door)  # type: ignore[arg-type]
    refused = {
        one.pattern.rpartition(":")[2]
        for one, before in zip(public(archive, [], metrics=True)[0], archive, strict=True)
        if one.handler is not before.handler
    }
    assert refused == {"invalidate", "forget"}
    methods = [GrpcMethod("/Put", verbs=ARCHIVE_WRITE), GrpcMethod("/Lookup", verbs=ARCHIVE_READ)]
    assert public([], methods, metrics=True)[1] == methods


def told(file: Path) -> list[tuple[str, str]]:
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({line["id"] for line in found}) == 1
    return [(line["stage"], line.get("result", "")) for line in found]


def asked(log: AuditLog, act: Callable[[], Awaitable[object]]) -> asyncio.Task[object]:
    async def handler(_: HttpCall) -> HttpReply:
        await act()
        return HttpReply(b"{}")

    route = HttpRoute("POST", "/v2/repository/models/{model}/unload", handler, ADMIN)
    (shown,), _ = audited([route], [], log, Outcomes())
    call = HttpCall("POST", "/v2/repository/models/ctr/unload", {"model": "ctr"}, body=b"")
    return asyncio.ensure_future(shown.handler(call))  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", ["asked", "ended"])
def test_who_leaves_while_a_line_is_written_leaves_two(tmp_path: Path, stage: str) -> None:
    file, done = tmp_path / "audit", asyncio.Event()
    log = AuditLog(file)
    with file.open() as held:

        async def act() -> None:
            done.set()
            if stage == "ended":
                fcntl.flock(held, fcntl.LOCK_EX)

        async def run() -> None:
            if stage == "asked":
                fcntl.flock(held, fcntl.LOCK_EX)
            task = asked(log, act)
            if stage == "ended":
                await done.wait()
            for _ in range(3):  # the caller leaves, and the server stops
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.sleep(0)
            fcntl.flock(held, fcntl.LOCK_UN)
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())
    assert done.is_set() == (stage == "ended")
    assert told(file) == [("asked", ""), ("ended", "failed: CancelledError" if stage == "asked" else "done")]


def forget(log: AuditLog, message: bytes) -> None:
    async def handler(*_: object) -> bytes:
        return b""

    method = GrpcMethod("/headrace.Archive/Forget", unary=handler, verbs=ADMIN, is_administration=True)
    _, (shown,) = audited([], [method], log, Outcomes())
    assert shown.unary is not None
    asyncio.run(shown.unary(message, GrpcCall(NO_DEADLINE, None, Bodies(Limits()), [])))  # type: ignore[arg-type]


def test_the_space_that_is_told_is_the_one_that_the_message_is_read_as(tmp_path: Path) -> None:
    """The field is there twice, for which parsers take the last."""
    log = AuditLog(tmp_path / "audit")
    forget(log, b"\x0a\x05first\x12\x01k\x0a\x04last")
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [(line["action"], line["on"]) for line in lines] == [("forget", "last")] * 2


def test_a_message_whose_space_cannot_be_told_is_refused(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    with pytest.raises(InvalidRequest, match="without groups: unsupported wire type 3 at byte 8"):
        forget(log, b"\x0a\x05first\x1b\x1c")
    assert not (tmp_path / "audit").read_text()
