"""From a method and a path to a handler."""

from __future__ import annotations

import pytest

from headrace.frontends.calls import HttpCall, HttpReply, HttpRoute
from headrace.frontends.transport.rest_routes import PATHS_KEPT, Match, Router


async def predict(call: HttpCall) -> HttpReply:
    raise NotImplementedError


async def status(call: HttpCall) -> HttpReply:
    raise NotImplementedError


async def delete(call: HttpCall) -> HttpReply:
    raise NotImplementedError


ROUTER = Router(
    [
        HttpRoute("POST", "/v1/models/{model}:predict", predict),
        HttpRoute("POST", "/v1/models/{model}/versions/{version}:predict", predict),
        HttpRoute("GET", "/v1/models/{model}", status),
        HttpRoute("DELETE", "/v1/models/{model}", delete),
        HttpRoute("GET", "/v1/models/{other}", predict),
        HttpRoute("GET", "/a.b", status),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "handler", "parameters"),
    [
        ("POST", "/v1/models/m:predict", predict, {"model": "m"}),
        ("POST", "/V1/MODELS/Mixed.Case-1:PREDICT", predict, {"model": "Mixed.Case-1"}),
        ("POST", "/v1/models/m/versions/7:predict", predict, {"model": "m", "version": "7"}),
        ("GET", "/v1/models/m", status, {"model": "m"}),
        ("DELETE", "/v1/models/m", delete, {"model": "m"}),
        ("GET", "/v1/models/a b%2F€", status, {"model": "a b%2F€"}),
        ("GET", "/a.b", status, {}),
    ],
)
def test_known_paths_are_found_the_first_time_and_the_next(
    method: str, path: str, handler: object, parameters: dict[str, str]
) -> None:
    for _ in range(2):
        match = ROUTER.match(method, path)
        assert match.handler is handler
        assert match.parameters == parameters


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/", "/v1/models//", "/v1/models/m/", "/v1/models/a/b", "/v1/models/a:b:predict", "/aXb",
        "", "//v1/models/m", "/v1/models/m/versions/:predict",
    ],
)  # fmt: skip
def test_unknown_paths_are_not_found(path: str) -> None:
    match = ROUTER.match("GET", path)
    assert match.handler is None
    assert match.allowed == ()


def test_a_known_path_with_another_method_says_which_it_takes() -> None:
    match = ROUTER.match("PUT", "/v1/models/m")
    assert match.handler is None
    assert match.allowed == ("DELETE", "GET")


def test_what_clients_make_up_never_jams_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router([HttpRoute("POST", "/v1/models/{model}:predict", predict)])
    searched: list[str] = []
    search = router._search

    def counting(method: str, path: str) -> Match:
        searched.append(path)
        return search(method, path)

    monkeypatch.setattr(router, "_search", counting)
    for index in range(5000):
        assert router.match("POST", f"/v1/models/m{index}:predict").handler is predict
        assert router.match("GET", f"/nothing/{index}").handler is None
        assert len(router._recent) + len(router._older) <= 2 * PATHS_KEPT
        if index >= 3000:  # a path that comes late, and then again and again, among all of them
            assert router.match("POST", "/v1/models/late:predict").parameters == {"model": "late"}
    assert searched.count("/v1/models/late:predict") == 1


def test_a_path_longer_than_any_model_has_is_not_remembered() -> None:
    router = Router([HttpRoute("GET", "/v1/models/{model}", status)])
    name = "m" * 1_000
    assert router.match("GET", f"/v1/models/{name}").parameters == {"model": name}
    assert not router._recent


def test_a_path_that_no_route_can_have_is_not_looked_for() -> None:
    router = Router([HttpRoute("GET", "/v1/models/{model}", status)])
    assert router.match("GET", f"/v1/models/{'m' * 10_000}").handler is None


@pytest.mark.parametrize("path", ["/predict", "/v1/models/m/predict", "/v1/model/m:Predict", "/m/predict/"])
def test_an_unknown_path_leads_to_the_route_of_its_last_word(path: str) -> None:
    assert ROUTER.match("POST", path).handler is None
    assert ROUTER.hint(path) == "; did you mean POST /v1/models/{model}:predict?"


def test_a_path_like_none_gets_no_hint() -> None:
    assert [ROUTER.hint(path) for path in ("/", "", "/nothing", "/{model")] == [""] * 4
