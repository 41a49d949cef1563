"""Three real servers behind a real balancer, under load: what it costs when one of them fails."""

from __future__ import annotations

import csv
import http.client
import io
import json
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import numpy as np

from tests.faults.still_serves import MODEL, Response, infer_message
from tests.model_directories import affine, write
from tests.running_server import RunningServer
from tests.stopped_processes import stop
from tests.waiting import seconds_left, until

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
CALLERS = 8
"""For each protocol."""

_ADDRESSES = {"one": "192.0.2.1", "two": "192.0.2.2", "three": "192.0.2.3"}
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_SECONDS = 60.0


def filled(text: str, given: Mapping[str, str]) -> str:
    """A configuration file with other words in place of those that were examples.

    Raises:
        AssertionError: The file has no such words: what would be run is not what was meant.
    """
    for pattern, word in given.items():
        text, found = re.subn(pattern, word, text)
        assert found, f"the file has no {pattern}"
    return text


def free_ports(many: int) -> list[int]:
    """Ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(many)]
        return [one.getsockname()[1] for one in sockets]


@dataclass(frozen=True)
class Call:
    """How one request ended: when it was sent, how long its caller waited, and what failed, if anything."""

    protocol: str
    began: float
    seconds: float
    failure: str = ""


@dataclass
class Load:
    """Callers of both protocols, each of which asks again as soon as it has its answer.

    Attributes:
        http_port: The balancer's port of REST.
        grpc_port: Its port of gRPC.
        calls: How all requests ended so far.
    """

    http_port: int
    grpc_port: int
    calls: list[Call] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._threads = [
            threading.Thread(target=run) for run in (self._ask_rest, self._ask_grpc) for _ in range(CALLERS)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), "a caller waits for ever"

    def wait_for_calls(self, more: int) -> None:
        """Wait until each protocol has had so many more answers."""
        wanted = {name: len(self.of(name)) + more for name in ("REST", "gRPC")}
        until = time.monotonic() + seconds_left()
        while any(len(self.of(name)) < many for name, many in wanted.items()):
            assert time.monotonic() < until, f"there are not {more} more answers in {_SECONDS:g} s"
            time.sleep(0.02)

    def of(self, protocol: str, began: float = 0.0) -> list[Call]:
        """The calls of a protocol that ended after a moment."""
        return [
            one for one in list(self.calls) if one.protocol == protocol and one.began + one.seconds >= began
        ]

    def _asking(self, protocol: str, ask: Callable[[], str]) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            failure = ask()
            self.calls.append(Call(protocol, began, time.monotonic() - began, failure))
            if failure:
                time.sleep(0.05)  # a caller who is refused at once would count only himself

    def _ask_rest(self) -> None:
        body = json.dumps({"instances": [1.0]})
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=30)

        def ask() -> str:
            try:
                connection.request("POST", f"/v1/models/{MODEL}:predict", body)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                return repr(error)
            right = response.status == http.HTTPStatus.OK and json.loads(answer) == {"predictions": [2.0]}
            return "" if right else f"{response.status} {answer[:100]!r}"

        self._asking("REST", ask)
        connection.close()

    def _ask_grpc(self) -> None:
        message = infer_message(MODEL, 1.0)
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}", options) as channel:
            call = channel.unary_unary(_INFER)

            def ask() -> str:
                try:
                    answer = Response.FromString(call(message, timeout=30))
                except grpc.RpcError as error:
                    return f"{error.code().name}: {error.details()}"
                found = np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()
                return "" if found == [2.0] else str(found)

            self._asking("gRPC", ask)


class Balancer:
    """A running balancer.

    Attributes:
        http_port: Where it takes REST.
        grpc_port: Where it takes gRPC.
        avoided: Whether it sends no more requests to a server, if it tells.
    """

    def __init__(
        self,
        command: list[str],
        ports: tuple[int, int],
        log: Path,
        avoided: Callable[[str], bool] | None = None,
    ) -> None:
        """Start it; use it as a context manager.

        Args:
            command: What to start, in the foreground.
            ports: For REST and gRPC.
            log: Where its output goes.
            avoided: Whether it sends no more requests to a server, by either protocol; None if it does
                not tell.
        """
        self.http_port, self.grpc_port = ports
        self._log, self.avoided = log, avoided
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        until = time.monotonic() + seconds_left()
        while not all(_answers(port) for port in (self.http_port, self.grpc_port)):
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__(None, None, None)
                raise AssertionError(f"the balancer does not listen:\n{self._log.read_text()}")
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if kind is not None:
            print("--- the balancer's output ---", self._log.read_text()[-4000:], sep="\n")


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def haproxy(folder: Path, servers: Mapping[str, RunningServer]) -> Balancer:
    """HAProxy with the configuration of ``deploy/haproxy``."""
    http_port, grpc_port = free_ports(2)
    control = folder / "admin.sock"
    given = {
        r"bind :8501\b": f"bind 127.0.0.1:{http_port}",
        r"bind :8500\b": f"bind 127.0.0.1:{grpc_port}",
        re.escape("/run/haproxy/admin.sock"): str(control),
        **_server_addresses(servers),
    }
    file = folder / "haproxy.cfg"
    file.write_text(filled((DEPLOY / "haproxy/haproxy.cfg").read_text(), given))

    def avoided(server: str) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(control))
            connection.sendall(b"show stat\n")
            said = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        rows = list(csv.DictReader(io.StringIO(said.removeprefix("# "))))
        states = [
            row["status"] for row in rows if row["svname"] == server and row["pxname"] in ("rest", "grpc")
        ]
        assert len(states) == 2, said
        return all(state.startswith("DOWN") for state in states)

    command = [found("haproxy"), "-db", "-f", str(file)]
    return Balancer(command, (http_port, grpc_port), folder / "haproxy.log", avoided)


def nginx(folder: Path, servers: Mapping[str, RunningServer]) -> Balancer:
    """NGINX with the configuration of ``deploy/nginx``."""
    http_port, grpc_port = free_ports(2)
    given = {
        r"listen 8501\b": f"listen 127.0.0.1:{http_port}",
        r"listen 8500\b": f"listen 127.0.0.1:{grpc_port}",
        "pid /run/nginx.pid": f"pid {folder}/nginx.pid",
        **_server_addresses(servers),
    }
    file = folder / "nginx.conf"
    file.write_text(filled((DEPLOY / "nginx/nginx.conf").read_text(), given))
    command = [found("nginx"), "-e", "stderr", "-c", str(file), "-p", str(folder), "-g", "daemon off;"]
    return Balancer(command, (http_port, grpc_port), folder / "nginx.log")


def envoy(
    folder: Path, servers: Mapping[str, RunningServer], others: Mapping[str, str] | None = None
) -> Balancer:
    """Envoy with the configuration of ``deploy/envoy``, and other words in it where some are given."""
    http_port, grpc_port, admin_port = free_ports(3)
    given = {
        r"address: 0\.0\.0\.0, port_value: 8501\b": f"address: 127.0.0.1, port_value: {http_port}",
        r"address: 0\.0\.0\.0, port_value: 8500\b": f"address: 127.0.0.1, port_value: {grpc_port}",
        r"port_value: 9901\b": f"port_value: {admin_port}",
        **_server_addresses(servers, "{}, port_value: {}"),
        **(others or {}),
    }
    file = folder / "envoy.yaml"
    file.write_text(filled((DEPLOY / "envoy/envoy.yaml").read_text(), given))

    def avoided(server: str) -> bool:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{admin_port}/clusters?format=json", timeout=10
        ) as said:
            clusters = json.load(said)["cluster_statuses"]
        ports = (servers[server].http_port, servers[server].grpc_port)
        states = [
            host["health_status"]
            for cluster in clusters
            for host in cluster["host_statuses"]
            if host["address"]["socket_address"]["port_value"] in ports
        ]
        assert len(states) == 2, clusters
        return not any(_healthy(state) for state in states)

    command = [str(Path(sys.executable).parent / "envoy"), "-c", str(file), "--use-dynamic-base-id"]
    return Balancer(command, (http_port, grpc_port), folder / "envoy.log", avoided)


BALANCERS = {"HAProxy": haproxy, "Envoy": envoy, "NGINX": nginx}


def _healthy(state: Mapping[str, object]) -> bool:
    failing = ("failed_active_health_check", "failed_outlier_check")
    return not any(state.get(one) for one in failing)


def _server_addresses(servers: Mapping[str, RunningServer], how: str = "{}:{}") -> dict[str, str]:
    return {
        re.escape(how.format(address, number)) + r"\b": how.format("127.0.0.1", port)
        for name, address in _ADDRESSES.items()
        for number, port in ((8501, servers[name].http_port), (8500, servers[name].grpc_port))
    }


def found(command: str) -> str:
    """Where a command of Debian's packages is, also for users whose path lacks ``/usr/sbin``.

    Raises:
        FileNotFoundError: It is not installed.
    """
    path = shutil.which(command) or shutil.which(command, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise FileNotFoundError(f"{command} is not installed: tools/system_packages.sh {command}")
    return path


@contextmanager
def three_servers(folder: Path) -> Iterator[dict[str, RunningServer]]:
    """Servers of the same small model, which stop as they do by default, with two seconds of notice."""
    write(folder / "models", MODEL, 1, affine(1.0, 1.0))
    with ExitStack() as stack:
        started = {name: RunningServer(folder / "models", "--drain-lead-seconds", "2") for name in _ADDRESSES}
        servers = {name: stack.enter_context(server) for name, server in started.items()}
        yield servers
        for server in servers.values():  # all at once: each says for two seconds that it stops
            server.process.send_signal(signal.SIGTERM)


@dataclass(frozen=True)
class Cost:
    """What a fault cost the callers of one protocol.

    Attributes:
        fault: What was done.
        protocol: Of the callers.
        requests: How many ended from then on.
        failures: What those got that failed.
        usual_seconds: The median time of an answer before.
        slowest_seconds: The longest that a caller waited.
        slow: How many waited for longer than half a second.
        avoided_seconds: How long it took the balancer to notice; None if it does not tell.
    """

    fault: str
    protocol: str
    requests: int
    failures: tuple[str, ...]
    usual_seconds: float
    slowest_seconds: float
    slow: int
    avoided_seconds: float | None


def freeze(server: RunningServer) -> None:
    """Stop the process where it is: connections are still accepted by the kernel, and never answered."""
    stop(server.process.pid)


def kill(server: RunningServer) -> None:
    """End it as a crash would."""
    server.process.kill()


def drain(server: RunningServer) -> None:
    """Ask it to end."""
    server.process.send_signal(signal.SIGTERM)


def faults(
    balancer: Balancer, servers: Mapping[str, RunningServer], seconds: tuple[float, float, float] = (4, 1, 3)
) -> Iterator[Cost]:
    """Freeze the first server, kill the second, drain the third, while the others go on.

    Args:
        balancer: In front of them.
        servers: By name.
        seconds: How long the load goes on after each, at the least.

    Yields:
        What each fault cost, for each protocol.
    """
    with Load(balancer.http_port, balancer.grpc_port) as load:
        for name, fault, longer in zip(servers, (freeze, kill, drain), seconds, strict=True):
            load.wait_for_calls(500)
            usual = {one: _usual(load, one) for one in ("REST", "gRPC")}
            began = time.monotonic()
            fault(servers[name])
            avoided = _avoided_after(balancer, name, began)
            time.sleep(max(0.0, began + longer - time.monotonic()))  # what is looked at is this time
            load.wait_for_calls(100)
            if fault is freeze:
                servers[name].process.send_signal(signal.SIGCONT)
            for protocol, median in usual.items():
                yield _cost(fault.__name__, load.of(protocol, began), median, avoided)
            if fault is freeze:
                _wait_until_asked(servers[name])
            else:
                servers[name].wait_until_ended()


def _usual(load: Load, protocol: str) -> float:
    return statistics.median(one.seconds for one in load.of(protocol)[-500:])


def _cost(fault: str, calls: list[Call], usual: float, avoided: float | None) -> Cost:
    waits = [one.seconds for one in calls]
    failures = tuple(one.failure for one in calls if one.failure)
    slow = sum(wait > 0.5 for wait in waits)
    return Cost(fault, calls[0].protocol, len(calls), failures, usual, max(waits), slow, avoided)


def _avoided_after(balancer: Balancer, name: str, began: float) -> float | None:
    avoided = balancer.avoided
    if avoided is None:
        return None
    until(lambda: avoided(name))
    return time.monotonic() - began


def _wait_until_asked(server: RunningServer) -> None:
    """Until a server that was avoided gets requests of both protocols again."""

    def asked(metric: str) -> float:
        said = server.get("/metrics")[1].decode()
        counts = re.findall(rf"^headrace_{metric}}} (\S+)$", said, re.MULTILINE)
        assert len(counts) == 1, metric
        return float(counts[0])

    metrics = ('calls_total{code="OK",protocol="gRPC"', f'model_requests_total{{model="{MODEL}"')
    calls, requests = map(asked, metrics)
    until(lambda: asked(metrics[0]) > calls)
    until(lambda: asked(metrics[1]) - requests > asked(metrics[0]) - calls)
