"""A check whose answer is no, 503, has not gone well: not in the records of calls, nor in the metrics."""

from __future__ import annotations

import json

import pytest

from headrace.base.errors import Unavailable
from headrace.base.status_codes import OK, codes
from headrace.frontends.oip.rest import http_routes
from headrace.frontends.transport.asgi import Application
from headrace.telemetry.outcomes import Channel, Outcome
from tests.unit.frontends.oip.doubles import ServiceDouble, ctr
from tests.unit.frontends.transport.wire import SMALL, Server

PATHS = {
    "/v2/health/ready": ({"live": True, "ready": False}, "the server is not ready"),
    "/v2/models/ctr/versions/1/ready": ({"name": "ctr", "ready": False}, "ctr is not ready"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("observed", [True, False])
def test_no_is_unavailable_in_records_and_metrics(path: str, observed: bool) -> None:
    service, server, seen = ServiceDouble(ctr()), Server(), list[Outcome]()
    service.is_ready = False
    server.application = Application(http_routes(service), [], SMALL)
    outcomes = server.application.outcomes
    if observed:
        outcomes.observe(seen.append)
    response = server.http("GET", path)
    body, reason = PATHS[path]
    assert (response.status, json.loads(response.body)) == (503, body)
    assert (outcomes.tallies[Channel.REST].answered, outcomes.tallies[Channel.REST].failed["503"]) == (0, 1)
    assert [(one.code, one.error) for one in seen] == [(codes(Unavailable("")), reason)] * observed
    assert server.http("GET", "/v2/health/live").status == 200
    assert outcomes.tallies[Channel.REST].answered == 1
    assert [one.code for one in seen[1:]] == [OK] * observed
