"""Vectors by the model of a remote ``headrace serve``, over the Open Inference Protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.embedders.embedder import Embedder
from headrace.archive.operations.open_archive import open_embedder
from headrace.base.errors import (
    ConfigError,
    FailedPrecondition,
    ModelError,
    NotFound,
    Overloaded,
    Unavailable,
)
from tests.encoder_models import write_letters, write_models
from tests.hostile_images import HostileServer, answer
from tests.running_server import RunningServer
from tools.services.ports import free_ports


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("remote") / "models")


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[RunningServer]:
    with RunningServer(models, "--allow-code") as started:
        yield started


def remote(port: int, directory: Path, **settings: object) -> Embedder:
    table = {"kind": "model", "model": "letters", "output": "counts", "url": f"http://127.0.0.1:{port}"}
    return open_embedder("mine", table | settings, directory)


def test_a_remote_model_embeds_texts_and_numbers(server: RunningServer, tmp_path: Path) -> None:
    embedder = remote(server.http_port, tmp_path, batch_rows=2)
    assert embedder.dimension == 3
    made = embedder.embed([b"abba", b"", b"cab", b"\xc3\xbc\0", b"broken", b"bb", b"wrong"])
    np.testing.assert_array_equal(
        made.vectors[[0, 1, 2, 3, 5]], [[2, 2, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0], [0, 2, 0]]
    )
    assert {place: failure.is_final for place, failure in made.failures.items()} == {4: True, 6: True}
    assert "a wrong text" in made.failures[6].reason
    embedder.close()
    numbers = remote(server.http_port, tmp_path, model="squares", output="")
    np.testing.assert_array_equal(numbers.embed([b"3", b"-4"]).vectors, [[3, 9], [-4, 16]])
    numbers.close()


def test_threads_share_a_client_and_connections_are_kept(server: RunningServer, tmp_path: Path) -> None:
    embedder = remote(server.http_port, tmp_path)
    made: list[float] = []

    def call(count: int) -> None:
        for _ in range(20):
            made.append(float(embedder.embed([b"a" * count]).vectors[0, 0]) - count)

    threads = [threading.Thread(target=call, args=(count,)) for count in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [0] * 80
    embedder.close()


def test_a_version_is_kept_to_and_its_end_is_told(
    server: RunningServer, models: Path, tmp_path: Path
) -> None:
    embedder = remote(server.http_port, tmp_path)
    write_letters(models, 2, scale=10)
    server.wait_for(lambda: server.get("/v2/models/letters/versions/2/ready")[0] == 200, "the new version")
    server.wait_for(lambda: server.get("/v2/models/letters/versions/1/ready")[0] != 200, "the old one to go")
    with pytest.raises(FailedPrecondition, match="the encoder's version is no longer served"):
        embedder.embed([b"a"])
    newer = remote(server.http_port, tmp_path)
    np.testing.assert_array_equal(newer.embed([b"ab"]).vectors, [[10, 10, 0]])
    assert newer.fingerprint != embedder.fingerprint
    newer.close()
    embedder.close()
    with pytest.raises(NotFound, match="the server answered 404"):
        remote(server.http_port, tmp_path, version=7)


@pytest.mark.rest
def test_a_server_that_dies_and_comes_back_is_asked_again(tmp_path: Path) -> None:
    directory = write_models(tmp_path / "models")
    (port,) = free_ports(1)  # which nobody who connects to anybody is given while it is away
    with RunningServer(directory, "--allow-code", "--http-port", str(port)) as first:
        embedder = remote(port, tmp_path)
        first.kill()
    with pytest.raises(
        Unavailable, match=f"127.0.0.1:{port} cannot be reached: Conn.*; is the server running there?"
    ):
        embedder.embed([b"a"])
    with pytest.raises(Unavailable):
        remote(port, tmp_path)
    with RunningServer(directory, "--allow-code", "--http-port", str(port)):
        np.testing.assert_array_equal(embedder.embed([b"ab"]).vectors, [[1, 1, 0]])
        embedder.close()


# ---- Servers that are not what they should be --------------------------------------------------

METADATA = (
    b'{"name":"letters","inputs":[{"name":"text","datatype":"BYTES","shape":[-1]}],'
    b'"outputs":[{"name":"counts","datatype":"FP32","shape":[-1,3]}]}'
)
VECTOR = np.arange(3, dtype=np.float32).tobytes()


def inferred(shape: str = "[1,3]", datatype: str = "FP32", size: int = 12, raw: bytes = VECTOR) -> bytes:
    """An answer of the protocol, with the length of its JSON in front, as ``reply`` wants it."""
    sized = f'"parameters":{{"binary_data_size":{size}}}'
    output = f'{{"name":"counts","datatype":"{datatype}","shape":{shape},{sized}}}'
    return f'{{"model_name":"letters","model_version":"1","outputs":[{output}]}}'.encode() + b"\n" + raw


def reply(body: bytes) -> Callable[..., None]:
    head, _, raw = body.partition(b"\n")
    return answer(head + raw, "200 OK", f"Inference-Header-Content-Length: {len(head)}")


class Pretender:
    """A server of the protocol whose answers change after the first."""

    def __init__(self, server: HostileServer) -> None:
        """Describe a model, and answer once as it should be."""
        self.server = server
        server.handlers["/v2/models/letters"] = answer(METADATA)
        self.say(reply(inferred()))

    def say(self, handler: Callable[..., object]) -> None:
        """What is answered from now on."""
        for path in ("/v2/models/letters/infer", "/v2/models/letters/versions/1/infer"):
            self.server.handlers[path] = handler


@pytest.fixture
def pretender() -> Iterator[Pretender]:
    with HostileServer({}) as server:
        yield Pretender(server)


def test_answers_that_are_none_are_the_encoders_fault(pretender: Pretender, tmp_path: Path) -> None:
    embedder = remote(pretender.server.port, tmp_path)
    np.testing.assert_array_equal(embedder.embed([b"x"]).vectors, [[0, 1, 2]])
    wrong = [
        inferred(shape="[2,3]", size=24, raw=VECTOR * 2),
        inferred(shape="[3]"),
        inferred(shape="[1,4]"),
        inferred(shape="[-1,-3]"),
        inferred(shape="[1,4294967296,4294967296]"),
        inferred(datatype="BYTES"),
        inferred(datatype="FP8"),
        inferred(size=8),
        inferred(raw=b""),
        b'{"outputs":[]}\n',
        b"{\n",
        b"[]\n",
        b"\xff\n",
        b'{"outputs":[{"name":"counts","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}\n',
        b'{"outputs":[],"more":"' + b"x" * 3_000_000 + b'"}\n',
    ]
    for body in wrong:
        pretender.say(reply(body))
        with pytest.raises(ModelError, match="the encoder fails on every input"):
            embedder.embed([b"x"])
    embedder.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("503 Service Unavailable", Unavailable),
        ("504 Gateway Timeout", Unavailable),
        ("429 Too Many Requests", Overloaded),
        ("401 Unauthorized", FailedPrecondition),
        ("302 Found", FailedPrecondition),
        ("404 Not Found", FailedPrecondition),
        ("500 Internal Server Error", ModelError),
    ],
)
def test_a_servers_status_says_what_can_be_done(
    status: str, error: type[Exception], pretender: Pretender, tmp_path: Path
) -> None:
    embedder = remote(pretender.server.port, tmp_path)
    pretender.say(answer(b"x" * 100_000, status, "Retry-After: 7"))
    with pytest.raises(error) as caught:
        embedder.embed([b"x"])
    if isinstance(caught.value, Unavailable | Overloaded):
        assert caught.value.retry_after_seconds == 7
    assert len(str(caught.value)) < 1000
    embedder.close()


@pytest.mark.rest
def test_a_server_that_hangs_or_drips_is_left_at_the_deadline(pretender: Pretender, tmp_path: Path) -> None:
    embedder = remote(pretender.server.port, tmp_path, timeout_seconds=2.0)
    ended = pretender.server.ended

    def drip(connection: object, head: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")  # type: ignore[attr-defined]
        while not ended.wait(0.02):
            connection.sendall(b" ")  # type: ignore[attr-defined]

    for handler in (lambda connection, head: ended.wait(120), drip):
        pretender.say(handler)
        with pytest.raises(Unavailable, match=r"did not answer within 2 s"):
            embedder.embed([b"x"])
    embedder.close()


def test_tokens_come_from_files_or_the_environment_and_are_not_sent_in_the_clear(
    pretender: Pretender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = pretender.server.port
    (tmp_path / "token").write_text("from-a-file\n")
    monkeypatch.setenv("ENCODER_TOKEN", "from-the-environment")
    remote(port, tmp_path, token_file="token").close()
    remote(port, tmp_path, token_env="ENCODER_TOKEN").close()
    told = [line for head in pretender.server.heads for line in head.split("\r\n") if "Authorization" in line]
    assert sorted(set(told)) == [
        "Authorization: Bearer from-a-file",
        "Authorization: Bearer from-the-environment",
    ]
    assert len(told) == len(pretender.server.heads)
    for settings, said in (
        ({"token_file": "none"}, "token_file: none cannot be read"),
        ({"token_env": "NO_SUCH_TOKEN"}, "token_env: NO_SUCH_TOKEN: expected a token"),
        ({"token_file": "token", "url": "http://encoder.example"}, "expected https://…, because a token"),
        ({"token_file": "token", "token_env": "X"}, "token_env: expected none, as token_file is set"),
        ({"url": "encoder:8501"}, "url: expected http://HOST:PORT"),
        ({"url": "http://user@encoder"}, "url: expected no user name or password in it"),
        (
            {"url": "https://encoder", "ca_file": "none.pem"},
            r"ca_file: \S+none.pem cannot be used: No such file",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            remote(port, tmp_path, **settings)
    (tmp_path / "token").write_text("two\r\nHost: lines")
    with pytest.raises(ConfigError, match="expected a token of printable ASCII"):
        remote(port, tmp_path, token_file="token")
