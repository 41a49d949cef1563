"""gRPC's health checking protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.base.errors import NotFound, Overloaded
from headrace.frontends import health
from headrace.frontends.calls import GrpcCall
from headrace.frontends.wire import protos
from tests.unit.frontends.oip.doubles import ServiceDouble, ctr, run

Request = protos.message("grpc.health.v1.HealthCheckRequest")
Response = protos.message("grpc.health.v1.HealthCheckResponse")
UNKNOWN, SERVING, NOT_SERVING = 3, 1, 2


def unary(service: ServiceDouble, name: str, message: bytes) -> bytes:
    methods = {one.path: one for one in health.grpc_methods(service)}
    handler = methods[f"/grpc.health.v1.Health/{name}"].unary
    assert handler is not None
    return bytes(run(handler(message, GrpcCall())))


@pytest.mark.parametrize("name", ["", "inference.GRPCInferenceService"])
@pytest.mark.parametrize(("ready", "status"), [(True, SERVING), (False, NOT_SERVING)])
def test_check_tells_whether_the_server_is_ready(name: str, ready: bool, status: int) -> None:
    service = ServiceDouble(ctr())
    service.is_ready = ready
    answer = unary(service, "Check", Request(service=name).SerializeToString())
    assert Response.FromString(answer).status == status


def test_check_does_not_know_a_service_that_is_not_here() -> None:
    with pytest.raises(NotFound, match=r"no gRPC service 'x.Y' on this server; it has .*inference"):
        unary(ServiceDouble(), "Check", Request(service="x.Y").SerializeToString())


def test_list_tells_of_every_service() -> None:
    answer = protos.message("grpc.health.v1.HealthListResponse").FromString(
        unary(ServiceDouble(), "List", b"")
    )
    assert set(answer.statuses) == {"", *protos.services()}
    assert {one.status for one in answer.statuses.values()} == {SERVING}


async def _one(message: bytes) -> AsyncIterator[bytes]:
    yield message


async def _watch(service: ServiceDouble, name: str) -> AsyncIterator[int]:
    methods = health.grpc_methods(service, watch_seconds=0.001)
    handler = methods[2].stream
    assert handler is not None
    async for response in handler(_one(Request(service=name).SerializeToString()), GrpcCall()):
        yield Response.FromString(response).status


def test_watch_sends_the_status_at_once_and_then_each_change() -> None:
    async def scenario() -> list[int]:
        service = ServiceDouble(ctr())
        seen = []
        async with asyncio.timeout(30):
            async for status in _watch(service, ""):
                seen.append(status)
                service.is_ready = not service.is_ready
                if len(seen) == 3:
                    break
        return seen

    assert run(scenario()) == [SERVING, NOT_SERVING, SERVING]


def test_watch_ends_when_the_server_goes_so_that_it_can_stop() -> None:
    async def scenario() -> list[int]:
        service = ServiceDouble()
        seen = []
        async for status in _watch(service, ""):
            seen.append(status)
            service.going, service.is_ready = True, False
        return seen

    assert run(scenario()) in ([SERVING], [SERVING, NOT_SERVING])


def test_watch_tells_that_a_service_is_unknown_and_stays() -> None:
    async def scenario() -> int:
        return await anext(_watch(ServiceDouble(), "x.Y"))

    assert run(scenario()) == UNKNOWN


def test_watch_without_a_request_ends() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        for message in ():
            yield message

    async def scenario() -> list[bytes]:
        handler = health.grpc_methods(ServiceDouble())[2].stream
        assert handler is not None
        return [response async for response in handler(nothing(), GrpcCall())]

    assert run(scenario()) == []


def test_no_more_than_so_many_watch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch is ended by its client only: all together must not take the room of all others."""
    monkeypatch.setattr(health, "_MOST_WATCHES", 2)
    handler = health.grpc_methods(ServiceDouble(ctr()))[2].stream
    assert handler is not None

    async def crowd() -> None:
        watches = [handler(_one(b""), GrpcCall()) for _ in range(4)]
        for watch in watches[:2]:
            await anext(watch)
        with pytest.raises(Overloaded, match="2 Watch calls are open"):
            await anext(watches[2])
        await watches[0].aclose()
        await anext(watches[3])
        for watch in watches[1:]:
            await watch.aclose()

    asyncio.run(crowd())
