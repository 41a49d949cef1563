"""What is administration, where that has a port of its own: loading, unloading, forgetting; not feeding."""

from __future__ import annotations

from types import SimpleNamespace

from headrace.access.permissions import ADMIN, ARCHIVE_READ, ARCHIVE_WRITE, HEALTH, METRICS, PREDICT
from headrace.config import Limits
from headrace.frontends.admin_split import administrative, public
from headrace.frontends.archive.rest import http_routes
from headrace.frontends.calls import GrpcMethod, HttpRoute


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
