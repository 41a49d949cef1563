"""Tokens of an identity provider, beside keys, with real servers, while the provider changes its own keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from headrace import example
from tests.end_to_end.test_keys import PREDICT, predicted, status_of_grpc
from tests.running_server import RunningServer
from tests.unit.access.keys_of_tests import entry, key_of, written
from tests.unit.access.tokens_of_tests import AUDIENCE, ISSUER, jwk, jwks, token

BODY = json.dumps({"instances": [1.0]}).encode()


def settings(directory: Path, jwt: str, more: str = "") -> Path:
    file = directory / "server.toml"
    file.write_text(f"{more}\n[access.jwt]\n{jwt}\n")
    return file


GOOD = f'keys = "jwks.json"\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"'


@pytest.mark.rest
@pytest.mark.parametrize(
    "options", [(), ("--http-server", "uvicorn", "--grpc-server", "grpcio")], ids=["h2corn", "others"]
)
def test_tokens_let_in_beside_keys_until_their_key_is_taken_out(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    example.write(tmp_path / "models")
    file = jwks(tmp_path / "jwks.json")
    written(tmp_path / "keys.toml", entry("script", ["predict", "metrics"]))
    config = settings(tmp_path, GOOD, '[access]\nfile = "keys.toml"')
    mine = token("ES256", headrace_models=["half*"]).decode()
    with RunningServer(tmp_path / "models", "--config", str(config), *options) as server:

        def rest(bearer: str) -> int:
            return server.request("POST", PREDICT, BODY, {"authorization": f"Bearer {bearer}"})[0]

        other = token(headrace_models=["other"]).decode()
        script = key_of("script").text
        assert [rest(one) for one in (mine, other, mine[:-8], script, "")] == [200, 403, 401, 200, 401]
        assert status_of_grpc(server, mine) is grpc.StatusCode.OK
        assert status_of_grpc(server, other) is grpc.StatusCode.PERMISSION_DENIED
        assert status_of_grpc(server, mine[:-8]) is grpc.StatusCode.UNAUTHENTICATED
        metrics = server.request("GET", "/metrics", headers={"x-api-key": script})[1].decode()
        assert 'headrace_caller_calls_total{caller="jwt:ann"} 4.0' in metrics
        assert "headrace_access_keys 4.0" in metrics

        jwks(file, jwk("EdDSA"))
        server.wait_for(lambda: rest(mine) == 401, "a key of the provider to be dropped")
        assert rest(token(headrace_models=["*"]).decode()) == 200
        assert predicted(server, script) == 200
        file.write_text("{")
        server.wait_for(
            lambda: "the previous keys stay valid" in "".join(server.errors), "the log to tell of it"
        )
        assert rest(token(headrace_models=["*"]).decode()) == 200
        assert mine not in "".join(server.errors)


def test_each_caller_by_tokens_has_the_limits_of_the_settings(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    jwks(tmp_path / "jwks.json")
    config = settings(tmp_path, f"{GOOD}\nrequests_per_second = 0.001\nburst_seconds = 0.0")
    with RunningServer(tmp_path / "models", "--config", str(config)) as server:
        ann = [token(jti=jti, headrace_models=["*"]).decode() for jti in ("one", "two", "three")]
        assert predicted(server, ann[0]) == 200
        assert status_of_grpc(server, ann[1]) is grpc.StatusCode.RESOURCE_EXHAUSTED
        bearer = {"authorization": f"Bearer {ann[2]}"}
        status, body = server.request("POST", PREDICT, BODY, bearer)
        assert (status, b"'jwt:ann' has reached its limit of 0.001 requests per second" in body) == (
            429,
            True,
        )
        assert predicted(server, token(sub="bob", headrace_models=["*"]).decode()) == 200


def test_a_server_does_not_start_with_settings_of_tokens_that_are_wrong(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    jwks(tmp_path / "jwks.json")
    for jwt, told in (
        (GOOD.replace("jwks.json", "none.json"), "cannot be read"),
        ('keys = "jwks.json"', "access.jwt.issuer: expected"),
        (f'{GOOD}\nalgorithms = ["HS256"]', "HS256"),
        (f'{GOOD}\nalgorithms = ["none"]', "none"),
        (f'issuer = "{ISSUER}"', "access.jwt.keys: expected"),
    ):
        command = [sys.executable, "-m", "headrace", "serve", str(tmp_path / "models"), "--http-port", "0"]
        command += ["--grpc-port", "0", "--config", str(settings(tmp_path, jwt))]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert told in ended.stderr, ended.stderr
