"""One worker's part of the limits."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.archive.model.archive_toml import ArchiveConfig, CacheSettings
from headrace.base import cpus
from headrace.base.errors import ConfigError
from headrace.config import BatchingPolicy, CachePolicy, Limits, ModelConfig, ServerConfig, VersionPolicy
from headrace.frontends.transport.listening_sockets import Step, listen_together, program, steer
from headrace.lifecycle.desired_state import Wanted
from headrace.storage.settings import MemoryQueue, MemoryStore
from headrace.workers import worker_shares
from headrace.workers.messages import Begin, Wants, decoded, encoded
from headrace.workers.worker_processes import open_files
from headrace.workers.worker_shares import ToldSource, taking, weighted

MIB = 2**20

MODELS = {
    "m": Wanted(
        {3: Path("/models/m/3"), 12: Path("/models/m/12")},
        ModelConfig(
            versions=VersionPolicy(count=2, labels={"stable": 3}),
            batching=BatchingPolicy(max_batch_rows=8, allowed_batch_rows=(1, 8)),
        ),
        {"stable": 3},
        {3: -(2**63), 12: None},
        "it is pinned to version 3, which does not exist",
    ),
    "empty": Wanted(),
}


@pytest.mark.parametrize(
    ("inflight", "connections", "workers", "expected"),
    [
        (512 * MIB, 0, 2, (256 * MIB, 0)),
        (512 * MIB, 1000, 3, (512 * MIB // 3, 334)),
        (512 * MIB, 1, 4, (128 * MIB, 1)),
        (512 * MIB, 0, 64, (64 * MIB, 0)),  # the largest message fits
    ],
)
def test_a_workers_limits(inflight: int, connections: int, workers: int, expected: tuple[int, int]) -> None:
    config = ServerConfig(
        workers=workers, limits=Limits(max_inflight_bytes=inflight, max_connections=connections)
    )
    limits = worker_shares.of_server(config, workers).limits
    assert (limits.max_inflight_bytes, limits.max_connections) == expected


@pytest.mark.parametrize(("size", "workers", "expected"), [(0, 4, 0), (MIB, 4, MIB // 4), (2**17, 4, 2**16)])
def test_a_workers_prediction_cache(size: int, workers: int, expected: int) -> None:
    config = ModelConfig(cache=CachePolicy(size_bytes=size))
    assert worker_shares.of_model(config, workers).cache.size_bytes == expected


@pytest.mark.parametrize(
    ("fill", "fills", "expected"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_workers_part_of_an_archive(fill: bool, fills: bool, expected: bool) -> None:
    config = ArchiveConfig(cache=CacheSettings(size_bytes=8 * MIB), fill=fill)
    part = worker_shares.of_archive(config, 4, fills=fills)
    assert (part.cache.size_bytes, part.fill) == (2 * MIB, expected)


@pytest.mark.parametrize(
    ("config", "name"),
    [(ArchiveConfig(store=MemoryStore()), "store"), (ArchiveConfig(queue=MemoryQueue()), "queue")],
)
def test_an_archive_of_one_process_is_refused(config: ArchiveConfig, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}.kind: expected one that processes can share"):
        worker_shares.of_archive(config, 2, fills=True)


def test_processors_are_divided() -> None:
    alone = cpus.available()
    try:
        cpus.divide_by(2)
        assert cpus.available() == max(1, alone // 2)
        cpus.divide_by(1000)
        assert cpus.available() == 1
    finally:
        cpus.divide_by(1)
    assert cpus.available() == alone


def test_settings_survive_the_way_to_a_worker() -> None:
    config = ServerConfig(archive=Path("archive.toml"), workers="auto")
    begin = Begin(1, Path("models"), config, (4, 5), 2, True, False, 1.5, False, True, 6)
    assert decoded(encoded(begin)) == begin


# Which worker gets a new connection: the program's steps run here, and by the kernel.

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux steers")


def packet(version: int, port: int) -> bytes:
    """The headers of a first packet, as far as the program reads them."""
    head = bytearray(60)
    head[0] = version << 4 | 5
    struct.pack_into("!H", head, 20 if version == 4 else 40, port)
    return bytes(head)


def run(steps: Sequence[Step], content: bytes) -> int:
    """What the kernel does with these operations."""
    kept = at = 0
    while True:
        code, if_so, if_not, value = steps[at]
        at += 1
        if code == 0x30:
            kept = content[value - 0xFFF00000]
        elif code == 0x28:
            (kept,) = struct.unpack_from("!H", content, value - 0xFFF00000)
        elif code == 0x74:
            kept >>= value
        elif code == 0x94:
            kept %= value
        elif code == 0x05:
            at += value
        elif code == 0x15:
            at += if_so if kept == value else if_not
        elif code == 0x06:
            return value


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(
    "taking_now", [[0], [1], [0, 1], [0, 2], [0, 1, 1], [0, 1, 2, 3], [one // 2 for one in range(512)]]
)
def test_blocks_of_ports_are_dealt_out_in_turn(version: int, taking_now: list[int]) -> None:
    steps = program(taking_now)
    for port in (1, 31, 32, 1000, 40_000, 40_032, 65_535):
        expected = taking_now[port // 32 % len(taking_now)]
        assert run(steps, packet(version, port)) == expected


@pytest.mark.parametrize(
    ("serving", "suspect", "ready", "expected"),
    [
        ([True, True], [False, False], [True, True], [0, 1]),
        ([True, False], [False, False], [True, False], [0]),
        ([True, True], [True, False], [True, True], [1]),
        ([True, True], [False, False], [False, True], [1]),  # one loads: it would refuse
        ([True, True], [False, True], [False, True], [0]),  # rather one that refuses than one that is stuck
        ([True, True], [False, False], [False, False], [0, 1]),
        ([True, True], [True, True], [True, True], [0, 1]),  # nobody answers: better they than nobody
        ([True, False], [True, False], [True, False], [0]),
        ([False, False], [False, False], [False, False], [0, 1]),  # the start: connections wait
    ],
)
def test_new_connections_go_to_ready_workers_first(
    serving: list[bool], suspect: list[bool], ready: list[bool], expected: list[int]
) -> None:
    assert taking(serving, [False, False], suspect, ready) == expected


@pytest.mark.parametrize(
    ("serving", "late", "expected"),
    [
        ([True, True], [False, True], [0]),  # it began when all of them were about to end
        ([False, True], [False, True], [1]),  # the other one is gone
        ([True, True], [True, True], [0, 1]),
        ([False, False], [False, False], [0, 1]),
    ],
)
def test_a_worker_that_begins_at_the_end_gets_connections_only_where_no_other_does(
    serving: list[bool], late: list[bool], expected: list[int]
) -> None:
    assert taking(serving, late, [False, False], serving) == expected


@pytest.mark.parametrize(
    ("numbers", "connections", "most", "expected"),
    [
        ([0, 1], [None, None], 0, [0, 1]),  # they cannot be counted
        ([0, 1], [None, 100], 0, [0, 1]),  # one does not answer: what it has not accepted is not counted
        ([0, 1], [30, 40], 0, [0, 1]),
        ([0, 1], [120, 70], 0, [0, 1, 1]),
        ([0, 1], [120, 80], 0, [0, 1]),  # from three quarters of the mean on it has its share only
        ([0, 1], [40, 10], 0, [0, 1]),  # so few may be other files
        ([0, 1], [50, 10], 0, [0, 1, 1]),
        ([0, 2], [500, 0, 20], 0, [0, 2, 2]),  # only the workers that get connections are compared
        ([0, 1, 2, 3], [0, 400, 400, 10], 0, [0, 0, 1, 2, 3, 3]),
        ([1], [0, 5], 0, [1]),
        ([0, 1], [50, 45], 50, [1]),  # one is full
        ([0, 1], [50, 50], 50, [0, 1]),
        ([0, 1], [None, 50], 50, [0]),
    ],
)
def test_workers_with_few_connections_get_twice_the_share_of_new_ones(
    numbers: list[int], connections: list[int | None], most: int, expected: list[int]
) -> None:
    assert weighted(numbers, connections, most) == expected


@linux
def test_open_files_are_counted() -> None:
    assert open_files(0) == 0
    program = (
        "import os, sys\n"
        "kept = [os.open('/dev/null', os.O_RDONLY) for _ in range(int(sys.argv[1]))]\n"
        "print(len(os.listdir('/proc/self/fd')) - 1, flush=True)\n"  # one more was open for the list
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, "20"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        there = int(child.stdout.readline())
        found = open_files(child.pid)
    if not found:
        pytest.skip("Linux tells how many files a process has open from 6.2 on")
    assert found == there > 20


def accepted(listener: socket.socket) -> int:
    listener.setblocking(False)
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


@linux
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kernel_steers(host: str) -> None:
    listeners = listen_together(host, 0, "http_port", 3)
    address = listeners[0].getsockname()[:2]
    for expected in ([0, 1, 2], [2], [0, 1]):
        assert steer(listeners[0], program(expected))
        callers = [socket.create_connection(address, timeout=30) for _ in range(48)]
        ports = Counter(expected[one.getsockname()[1] // 32 % len(expected)] for one in callers)
        found = [0, 0, 0]
        while sum(found) < len(callers):  # connected here is perhaps not acceptable there yet
            found = [before + accepted(one) for before, one in zip(found, listeners, strict=True)]
        assert found == [ports[number] for number in range(3)]
        for one in callers:
            one.close()
    for one in listeners:
        one.close()


def test_a_port_that_others_share_is_taken() -> None:
    listeners = listen_together("127.0.0.1", 0, "http_port", 2)
    port = listeners[0].getsockname()[1]
    with pytest.raises(ConfigError, match=f"http_port: port {port} of 127.0.0.1 is taken"):
        listen_together("127.0.0.1", port, "http_port", 2)
    for one in listeners:
        one.close()


def sent(models: dict[str, Wanted], unusable: dict[str, str], workers: int = 2) -> Wants:
    message = decoded(encoded(worker_shares.of_wanted(models, unusable, workers)))
    assert isinstance(message, Wants)
    return message


def test_a_worker_wants_what_the_supervisor_has_seen() -> None:
    heard: list[object] = []
    source = ToldSource().made_for(lambda models, unusable: heard.append((models, unusable)))
    source.start()
    assert heard == [], "nothing was told yet"
    source.take(sent(MODELS, {"x": "no version in it"}))
    assert heard == [(MODELS, {"x": "no version in it"})]
    source.stop()
    source.take(sent({}, {}))
    assert len(heard) == 1


def test_a_wanted_state_from_before_the_start_is_reported_at_the_start() -> None:
    heard: list[object] = []
    source = ToldSource()
    source.take(sent({}, {"x": "an earlier look"}))
    source.take(sent(MODELS, {}))
    source.made_for(lambda models, unusable: heard.append((models, unusable))).start()
    assert heard == [(MODELS, {})], "all that is wanted, said whole"


def test_caches_are_divided() -> None:
    config = ModelConfig(cache=CachePolicy(size_bytes=2**22))
    found = sent({"m": Wanted({1: Path("/m/1")}, config)}, {}, workers=4).models["m"].config
    assert found.cache.size_bytes == 2**20
