"""Every route and every method refuses whoever has no key, and tells him nothing: none is forgotten."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.access.caller import ASKING, NOT_ADMITTED
from headrace.access.gate import Gate
from headrace.access.permissions import ANY, HEALTH, VERBS, Verb, named
from headrace.base.errors import PermissionDenied
from headrace.config import AccessConfig, BatchingPolicy, ServerConfig
from headrace.frontends.access_control import guard, questions
from headrace.frontends.archive import grpc as archive_grpc
from headrace.frontends.archive import rest as archive_rest
from headrace.frontends.archive.service import GuardedArchiveService
from headrace.frontends.calls import HttpRoute
from headrace.frontends.service import Service
from headrace.frontends.transport.guarded_app import GuardedApplication
from headrace.frontends.wire import protos
from headrace.server.server import grpc_methods, http_routes
from headrace.serving.engine import Engine
from headrace.telemetry.outcomes import Outcome
from headrace.workers.worker_service import WorkerService
from tests.models import Doubling, DoublingInParts
from tests.unit.access.keys_of_tests import bearer, entry, gate_of, key_of, written
from tests.unit.frontends.archive.doors import an_archive
from tests.unit.frontends.transport.wire import GRPC, Event, Response, Wire, body, message
from tests.waiting import until_in_loop

VALUES = {"model": "m", "version": "1", "label": "l", "space": "s"}


class Served:
    """All routes and methods that a server can have, behind a gate."""

    def __init__(self, engine: Engine, gate: Gate, archive: object = None) -> None:
        self.engine = engine
        self.service = Service(engine)
        guard(self.service, gate)
        self.routes, self.methods = http_routes(self.service), grpc_methods(self.service)
        self.close: Callable[[], object] = lambda: None
        if archive is not None:
            door = GuardedArchiveService(archive, self.service.limits, self.service.slicer, is_admin=True)  # type: ignore[arg-type]
            self.close = door.close
            self.routes += archive_rest.http_routes(door)
            self.methods += archive_grpc.grpc_methods(door, engine.outcomes)
        self.application = GuardedApplication(
            self.routes,
            self.methods,
            engine.config.limits,
            engine.outcomes,
            self.service.slicer,
            gate=gate,
        )

    async def ask(
        self,
        method: str,
        path: str,
        sent: bytes | None = b"",
        *headers: tuple[bytes, bytes],
        grpc: bool = False,
    ) -> Response:
        """One request; with None for a body that never comes."""
        wire = Wire([] if sent is None else body(sent))
        kind = GRPC if grpc else [(b"content-type", b"application/json")]
        length = [] if sent is None or grpc else [(b"content-length", b"%d" % len(sent))]
        scope: Event = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [*kind, *length, *headers],
            "query_string": b"",
            "client": ("127.0.0.1", 50000),
        }
        # In a task of its own, as every server has it.
        await asyncio.wait_for(
            asyncio.create_task(self.application.answer(scope, wire.receive, wire.send)), 20
        )
        return Response(wire.sent)


def path_of(route: HttpRoute) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: VALUES[found[1]], route.pattern)


def in_server(
    gate: Gate, test: Callable[[Served], object], *, archive: object = None, **models: Doubling
) -> None:
    async def run() -> None:
        async with Engine.from_objects(models or {"m": Doubling()}) as engine:
            served = Served(engine, gate, archive)
            made = test(served)
            if asyncio.iscoroutine(made):
                await made
            served.close()

    asyncio.run(run())


@pytest.fixture
def archive() -> Iterator[object]:
    with an_archive() as found:
        yield found


def a_message(path: str) -> bytes:
    """The request of a method, with names in all places where it can name a model or a space."""
    service, _, name = path[1:].partition("/")
    kind = protos.POOL.FindServiceByName(service).methods_by_name[name].input_type
    made = protos.message(kind.full_name)()
    fields = kind.fields_by_name
    for field, value in (("model_name", "m"), ("name", "m"), ("space", "items")):
        if field in fields:
            setattr(made, field, value)
    if "keys" in fields:
        made.keys.append("k")
    if "model_spec" in fields:
        made.model_spec.name = "m"
    if "tasks" in fields:
        task = made.tasks.add(method_name="tensorflow/serving/classify")
        task.model_spec.name = "m"
        made.input.example_list.examples.add()
    if "metadata_field" in fields:
        made.metadata_field.append("signature_def")
    if "config" in fields:
        made.config.model_config_list.config.add(name="m")
    if name in {"Classify", "Regress"}:
        made.input.example_list.examples.add()
    written: bytes = made.SerializeToString()
    return message(written)


NAMES_NOTHING = re.compile("Server(Live|Ready|Metadata)|RepositoryIndex|health|reflection|ReloadConfig")


def test_every_route_and_method_says_what_a_key_must_permit(archive: object) -> None:
    def check(served: Served) -> None:
        silent = [one for one in (*served.routes, *served.methods) if not named(one.verbs)]
        assert not silent, "without verbs nobody may: say in the HttpRoute or the GrpcMethod which permit it"
        opened = {one.path for one in served.methods if one.verbs == HEALTH}
        opened |= {one.pattern for one in served.routes if one.verbs == HEALTH}
        assert len(opened) == 7
        assert all("ealth" in one or one.endswith(("ServerLive", "ServerReady")) for one in opened)

    in_server(gate_of(), check, archive=archive)


def test_whoever_has_no_key_is_refused_everywhere_before_his_body_is_read(archive: object) -> None:
    async def check(served: Served) -> None:
        for route in served.routes:
            response = await served.ask(route.method, path_of(route), None if route.verbs != HEALTH else b"")
            if route.verbs == HEALTH:
                assert response.status == 200
                continue
            assert response.status == 401, route
            assert response.headers[b"www-authenticate"] == b'Bearer realm="headrace"'
            assert "requires a key" in json.loads(response.body)["error"]
        for method in served.methods:
            if method.verbs == HEALTH:
                continue
            response = await served.ask("POST", method.path, None, grpc=True)
            assert response.grpc[0] == 16, method
            assert "requires a key" in response.grpc[1]
        for other in (
            "/",
            "/v3",
            "/v1/models/m/nothing",
            "//v1/models/m:predict",
            "/v1/models/a%2Fb:predict",
        ):
            for method in ("GET", "POST", "OPTIONS", "HEAD", "PUT"):
                assert (await served.ask(method, other, None)).status == 401
        assert (await served.ask("POST", "/x.Unknown/Method", None, grpc=True)).grpc[0] == 16
        assert served.application.bodies.held_bytes == 0

    in_server(gate_of(entry("one")), check, archive=archive)


@pytest.mark.parametrize("verb", VERBS)
def test_a_key_permits_its_verbs_and_nothing_else(archive: object, verb: Verb) -> None:
    async def check(served: Served) -> None:
        for route in served.routes:
            response = await served.ask(route.method, path_of(route), b"", bearer("one"))
            may = verb in named(route.verbs) or route.verbs == HEALTH
            # The names in the paths are of nothing that is there: what is let in ends otherwise.
            assert (response.status == 403) is not may, (route, response.body)
        for method in served.methods:
            sent = a_message(method.path)
            if method.path.endswith("Health/Watch"):
                continue
            response = await served.ask("POST", method.path, sent, bearer("one"), grpc=True)
            may = verb in named(method.verbs) or method.verbs == HEALTH
            assert (response.grpc[0] == 7) is not may, (method, response.grpc)

    in_server(gate_of(entry("one", [verb])), check, archive=archive)


def test_a_key_permits_its_models_and_spaces_and_says_nothing_of_others(archive: object) -> None:
    async def check(served: Served) -> None:
        for route in served.routes:
            response = await served.ask(route.method, path_of(route), b"{}", bearer("one"))
            if "{model}" in route.pattern or "{space}" in route.pattern:
                # With a version and a label, TensorFlow Serving's API refuses before anybody is asked.
                status = 400 if "{version}/labels" in route.pattern else 403
                if route.pattern.endswith((":put", ":invalidate", ":forget", ":lookup")):
                    sent = json.dumps(
                        {"keys": ["k"], "vectors": [[1, 2, 3, 4]]}
                        if "put" in route.pattern
                        else {"keys": ["k"]}
                    )
                    response = await served.ask(route.method, path_of(route), sent.encode(), bearer("one"))
                assert response.status == status, (route, response.body)
            elif route.verbs != ANY and response.status == 200 and "metrics" not in route.pattern:
                assert b'"m"' not in response.body
                assert b"items" not in response.body
        for method in served.methods:
            if method.path.endswith("Health/Watch"):
                continue
            response = await served.ask("POST", method.path, a_message(method.path), bearer("one"), grpc=True)
            if method.path.endswith("RepositoryIndex"):
                assert response.grpc[0] == 0, response.grpc
                assert response.messages == [b""], "no model is listed"
            elif NAMES_NOTHING.search(method.path):
                assert response.grpc[0] == (12 if "ReloadConfig" in method.path else 0), (method, response)
            elif method.stream is not None:
                assert b"does not permit " in b"".join(response.messages), method
            else:
                assert response.grpc[0] == 7, (method, response.grpc)
                assert "does not permit " in response.grpc[1]

    in_server(gate_of(entry("one", VERBS, ["other*"], ["other*"])), check, archive=archive)


def test_callers_that_are_answered_at_once_find_their_own_models_only() -> None:
    """The caller is of the task: what is interleaved is not mixed up."""
    callers = [f"team{number}" for number in range(8)]

    async def check(served: Served) -> None:
        async def ask(caller: str, model: str) -> None:
            sent = json.dumps({"instances": [[1.0, 2.0]] * 50}).encode()
            response = await served.ask("POST", f"/v1/models/{model}:predict", sent, bearer(caller))
            assert response.status == (200 if caller == model else 403), (caller, model, response.body)

        await asyncio.gather(*(ask(one, other) for one in callers for other in callers))
        assert served.application.gate.calls == dict.fromkeys(callers, len(callers))

    gate = gate_of(*(entry(one, ["predict"], [one]) for one in callers))
    in_server(gate, check, **{one: Doubling() for one in callers})


def test_without_a_caller_a_guarded_service_refuses_everything() -> None:
    async def check(served: Served) -> None:
        service = served.service
        assert ASKING.get() is NOT_ADMITTED
        asks: Sequence[Callable[[], object]] = (
            lambda: service.loaded("m"),
            lambda: service.model_ready("m"),
            lambda: service.status("m"),
            lambda: service.problem("m"),
            lambda: service.labels("m"),
            lambda: service.default_version("m"),
            lambda: service.reload("m"),
            lambda: service.unload("m"),
        )
        for ask in asks:
            with pytest.raises(PermissionDenied):
                ask()
        assert service.models() == []

    in_server(gate_of(), check)


def test_whatever_a_service_is_asked_of_a_model_is_guarded() -> None:
    class Larger(Service):
        def size(self, model: str) -> int:
            return len(model)

    assert {"status", "unload", "size"} <= set(questions(Larger))

    async def run() -> None:
        async with Engine.from_objects({"m": Doubling()}) as engine:
            service = Larger(engine)
            guard(service, gate_of())
            with pytest.raises(PermissionDenied):
                service.size("m")

    asyncio.run(run())


def test_what_can_be_asked_of_a_service_is_either_of_a_model_or_open_to_all() -> None:
    """Whoever adds a method decides: one with a parameter ``model`` is guarded, any other is not."""
    of_a_model = {
        "answers", "counts", "default_version", "labels", "model_ready", "problem", "reload", "status",
        "unload",
    }  # fmt: skip
    of_the_server = {
        "also_measures", "also_serves", "drain", "go", "live", "metrics", "metrics_as_protobuf", "models",
        "own_metrics", "ready", "report_load",
    }  # fmt: skip
    from_the_supervisor = {"act", "beat", "counted", "see", "told"}
    for kind, more in ((Service, set[str]()), (WorkerService, from_the_supervisor)):
        assert set(questions(kind)) == of_a_model
        members = inspect.getmembers(kind, inspect.isfunction)
        assert {name for name, _ in members if not name.startswith("_")} == of_a_model | of_the_server | more


def test_what_is_refused_is_an_outcome_as_any_other() -> None:
    seen: list[Outcome] = []

    async def check(served: Served) -> None:
        served.service.outcomes.observe(seen.append)
        await served.ask("POST", "/v1/models/m:predict", None)
        await served.ask("POST", "/inference.GRPCInferenceService/ModelInfer", None, grpc=True)
        await served.ask("POST", "/v1/models/m:predict", b'{"instances": [[1, 2]]}', bearer("one"))

    in_server(gate_of(entry("one")), check)
    assert [one.code.http for one in seen] == [401, 401, 200]
    assert [one.key_of for one in seen] == ["", "", "one"]


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([(b"authorization", b"")], "Bearer and a key"),
        ([(b"authorization", b"Basic aGVsbG8=")], "Bearer and a key"),
        ([(b"authorization", b"Bearer ")], "unknown key"),
        ([(b"authorization", b"Bearer \xff\xfe" * 9000)], "unknown key"),
        ([(b"authorization", b"Bearer hrk_000000000000_" + b"A" * 43)], "unknown key"),
        ([(b"x-api-key", b"\0" * 60)], "unknown key"),
        ([bearer("one"), bearer("one")], "expected one key, got 2"),
        ([bearer("one"), (b"x-api-key", key_of("one").text.encode())], "expected one key, got 2"),
        ([(b"authorization", b"Bearer " + key_of("one").text.upper().encode())], "unknown key"),
        ([(b"authorization", b"Bearer " + key_of("one").text[:-1].encode())], "unknown key"),
        ([(b"authorization", key_of("one").text.encode())], "Bearer and a key"),
        ([(b"x-api-key", b"Bearer " + key_of("one").text.encode())], "unknown key"),
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(headers: list[tuple[bytes, bytes]], told: str) -> None:
    async def check(served: Served) -> None:
        response = await served.ask("GET", "/v2/models/m", b"", *headers)
        assert response.status == 401
        assert told in response.body.decode()
        assert len(response.body) < 300
        assert key_of("one").text[20:30].encode() not in response.body

    in_server(gate_of(entry("one")), check)


@pytest.mark.parametrize(
    "header",
    [
        bearer("one"),
        (b"authorization", b"bearer  " + key_of("one").text.encode()),
        (b"authorization", b"BEARER " + key_of("one").text.encode() + b" "),
        (b"x-api-key", key_of("one").text.encode()),
    ],
)
def test_a_key_may_come_in_two_headers(header: tuple[bytes, bytes]) -> None:
    async def check(served: Served) -> None:
        row = np.array([[1.0, 2.0]], np.float32).tolist()
        sent = json.dumps({"instances": row}).encode()
        response = await served.ask("POST", "/v1/models/m:predict", sent, header)
        assert json.loads(response.body) == {"predictions": [[2.0, 4.0]]}

    in_server(gate_of(entry("one", ["predict"])), check)


ROWS = json.dumps({"instances": [[1.0, 2.0]] * 10}).encode()


def test_who_is_over_his_limit_is_told_when_to_come_back() -> None:
    limited = msgspec.structs.replace(
        entry("one"), requests_per_second=0.02, rows_per_second=1000.0, burst_seconds=50.0
    )

    async def check(served: Served) -> None:
        statuses = []
        for _ in range(4):
            response = await served.ask("POST", "/v1/models/m:predict", ROWS, bearer("one"))
            statuses.append(response.status)
        assert statuses[:2] == [200, 200]
        assert statuses[-1] == 429
        assert int(response.headers[b"retry-after"]) >= 1
        refused = await served.ask(
            "POST", "/inference.GRPCInferenceService/ServerMetadata", None, bearer("one"), grpc=True
        )
        assert refused.grpc[0] == 8
        assert b"grpc-retry-pushback-ms" in refused.trailers
        assert (await served.ask("POST", "/v1/models/m:predict", ROWS, bearer("two"))).status == 200
        assert served.application.gate.refused["OverLimit"] >= 2

    in_server(gate_of(limited, entry("two")), check)


def test_rows_are_limited_where_they_are_known() -> None:
    limited = msgspec.structs.replace(entry("one"), rows_per_second=0.05)

    async def check(served: Served) -> None:
        assert (await served.ask("POST", "/v1/models/m:predict", ROWS, bearer("one"))).status == 200
        response = await served.ask("POST", "/v1/models/m:predict", ROWS, bearer("one"))
        assert response.status == 429
        assert "0.05 rows per second" in response.body.decode()

    in_server(gate_of(limited), check)


def test_rows_of_streams_are_limited_too() -> None:
    limited = msgspec.structs.replace(entry("one"), rows_per_second=0.05)
    path, asked = "/v2/models/m/generate_stream", json.dumps({"x": [1.0, 2.0]}).encode()

    async def check(served: Served) -> None:
        response = await served.ask("POST", path, asked, bearer("one"))
        assert response.status == 200
        assert b'"y":[2.0,4.0]' in response.body
        assert (await served.ask("POST", path, asked, bearer("one"))).status == 429
        await until_in_loop(lambda: not served.engine.loaded("m").outstanding)

    for model in (DoublingInParts(), Doubling()):
        in_server(gate_of(limited), check, m=model)  # type: ignore[arg-type]


def test_what_has_ended_is_under_way_no_more_however_it_ended() -> None:
    limited = msgspec.structs.replace(entry("one"), concurrent_requests=1)

    async def check(served: Served) -> None:
        for sent, status in ((ROWS, 200), (b"{", 400), (ROWS, 200)):
            response = await served.ask("POST", "/v1/models/m:predict", sent, bearer("one"))
            assert response.status == status
        hanging = asyncio.create_task(served.ask("POST", "/v1/models/m:predict", None, bearer("one")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        response = await served.ask("GET", "/v2", b"", bearer("one"))
        assert response.status == 429
        assert "in progress" in response.body.decode()
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        await asyncio.sleep(0)
        assert (await served.ask("GET", "/v2", b"", bearer("one"))).status == 200

    in_server(gate_of(limited), check)


@pytest.mark.parametrize(
    ("priority", "status"), [(b"2", 200), (b"3", 200), (b"1", 403), (b"0", 400), (b"high", 400), (b"22", 400)]
)
def test_a_request_may_have_a_priority(priority: bytes, status: int) -> None:
    async def check(served: Served) -> None:
        header = (b"headrace-priority", priority)
        response = await served.ask("POST", "/v1/models/m:predict", ROWS, bearer("one"), header)
        assert response.status == status

    in_server(gate_of(entry("one")), check)


def test_callers_take_turns_where_keys_are_wanted(tmp_path: Path) -> None:
    """In a queue of one caller's requests, another's is answered among the first."""
    hold = threading.Event()
    hold.set()
    model = Doubling(before=lambda: hold.wait(120) and None)
    file = written(tmp_path / "keys.toml", entry("greedy"), entry("modest"))
    config = ServerConfig(access=AccessConfig(file=file))
    ended: list[str] = []

    async def run() -> None:
        batching = BatchingPolicy(max_batch_rows=10, instances=1)
        async with Engine(config=config, objects={"m": model}, batching=batching) as engine:
            hold.clear()  # it has been warmed up
            served = Served(engine, gate_of(entry("greedy"), entry("modest")))

            async def ask(caller: str) -> None:
                response = await served.ask("POST", "/v1/models/m:predict", ROWS, bearer(caller))
                assert response.status == 200
                ended.append(caller)

            asking = [asyncio.create_task(ask("greedy")) for _ in range(20)]
            await until_in_loop(lambda: engine.manager.get("m").batcher.queued_rows >= 190)
            asking.append(asyncio.create_task(ask("modest")))
            await until_in_loop(lambda: engine.manager.get("m").batcher.queued_rows >= 200)
            hold.set()
            await asyncio.gather(*asking)

    asyncio.run(asyncio.wait_for(run(), 120))
    assert "modest" in ended[:4]
