"""Lookups over gRPC and REST: an archive from its cache and from LMDB, beside a plain dict behind grpcio.

20,000 keys of 256 numbers of float16, all found; each answer was compared with what was stored once. The
server has one core, the load another. What counts is the server's processor time.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np

from benchmarks import taken
from benchmarks.h2load import H2load
from benchmarks.load import Sample, measure_grpc, measure_http
from benchmarks.processes import Command, Server, running
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, table, verdict
from headrace.archive.opening import open_archive_file
from headrace.frontends.transport.grpc_framing import frame
from headrace.frontends.wire import protos
from headrace.tensors import Array

KEYS = 20_000
DIMENSION = 256
COUNTS = (1, 100, 2000)
METHOD = "/headrace.archive.v1.Archive/Lookup"
IN_FLIGHT = 16
BODIES = 4
CACHED, LMDB, DICT = "archive, cache", "archive, LMDB", "dict, grpcio"
ECHO, ECHO_GRPCIO = "no lookup, headrace", "no lookup, grpcio"
ECHOED_KEYS = 100
SETTINGS = f"""
[spaces.images]
dimension = {DIMENSION}
dtype = "float16"

[cache]
size_bytes = """
SMALLEST_CACHE_BYTES = 2**16

Request = protos.message("headrace.archive.v1.LookupRequest")
Response = protos.message("headrace.archive.v1.LookupResponse")


def key(number: int) -> str:
    """A key as shops have them."""
    return f"https://images.example/items/{number:08d}.jpg"


def some_vectors() -> Array:
    """What is stored: float16 ``[KEYS, DIMENSION]``, the same each time."""
    vectors: Array = np.random.default_rng(7).standard_normal((KEYS, DIMENSION)).astype(np.float16)
    return vectors


def run(effort: Effort) -> None:
    """Measure the three in turns for each number of keys, then JSON, then latency at half load.

    Args:
        effort: How much measuring is done.
    """
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as found:
        for keys in COUNTS:
            print(f"{keys} keys a lookup, gRPC, {IN_FLIGHT} in flight", flush=True)
            measured = interleaved(
                {name: by_grpc(server, keys, effort) for name, server in found.items()}, effort.rounds
            )
            table(measured, keys)
            cpu = {name: [one.cpu_microseconds for one in rounds] for name, rounds in measured.items()}
            for name in (CACHED, LMDB):
                more = ratios(cpu[DICT], cpu[name])
                told = f"gRPC, {keys} keys, {name}: CPU a lookup ≤ ⅓ of a dict's behind grpcio"
                verdict(told, middle(more) >= 3, f"1/{spread(more, 1)}")
        of_echoes(effort)
        for keys in (1, 100):
            print(f"{keys} keys a lookup, JSON over HTTP/1.1, 64 in flight", flush=True)
            table(interleaved({CACHED: by_http(found[CACHED], keys, effort)}, effort.rounds), keys)
        at_half_load(found, effort)


def of_echoes(effort: Effort) -> None:
    """What the front ends cost alone: answers of the same size, nothing looked up, parsed or put together."""
    program = (sys.executable, "-m", "benchmarks.peers.archive_echo", "--port", "{port}")
    keys = ("--keys", str(ECHOED_KEYS))
    ours = Command(ECHO, (*program, *keys, "headrace"))
    theirs = Command(ECHO_GRPCIO, (*program, *keys, "grpcio"))
    with running(ours) as headrace, running(theirs) as by_grpcio:
        measures = {ECHO: headrace, ECHO_GRPCIO: by_grpcio}
        print(f"answers of {ECHOED_KEYS} keys without a lookup, gRPC, {IN_FLIGHT} in flight", flush=True)
        measured = interleaved(
            {name: by_grpc(server, ECHOED_KEYS, effort) for name, server in measures.items()}, effort.rounds
        )
    table(measured, ECHOED_KEYS)
    cpu = {name: [one.cpu_microseconds for one in rounds] for name, rounds in measured.items()}
    print(f"  headrace's front end alone: 1/{spread(ratios(cpu[ECHO_GRPCIO], cpu[ECHO]), 1)} of grpcio's CPU")


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, Server]]:
    """The three, running, each of whose answers has been compared."""
    vectors = some_vectors()
    (folder / "cached.toml").write_text(f"{SETTINGS}{2**28}\n")
    (folder / "uncached.toml").write_text(f"{SETTINGS}{SMALLEST_CACHE_BYTES}\n")
    with open_archive_file(folder / "cached.toml") as archive:
        archive.put("images", [key(number) for number in range(KEYS)], vectors)
    program = (str(Path(sys.executable).with_name("headrace")), "archive", "serve")
    ports = ("--http-port", "0", "--grpc-port", "0", "--archive")
    announces = (("http", r"REST\s+http://\S+:(\d+)"), ("grpc", r"gRPC\s+\S+:(\d+)"))
    plain = (sys.executable, "-m", "benchmarks.peers.archive_dict", "--port", "{port}")
    commands = (
        Command(CACHED, (*program, *ports, str(folder / "cached.toml")), announces=announces),
        Command(LMDB, (*program, *ports, str(folder / "uncached.toml")), announces=announces),
        Command(DICT, plain),
    )
    with running(commands[0]) as cached, running(commands[1]) as lmdb, running(commands[2]) as by_dict:
        found = {CACHED: cached, LMDB: lmdb, DICT: by_dict}
        for server in found.values():
            check(server, vectors)
        yield found


def check(server: Server, vectors: Array) -> None:
    """Ask for every key, and compare.

    Raises:
        RuntimeError: An answer is not what was stored.
    """
    with grpc.insecure_channel(
        f"127.0.0.1:{server.ports['grpc']}", options=[("grpc.max_receive_message_length", -1)]
    ) as channel:
        ask = channel.unary_unary(METHOD, Request.SerializeToString, Response.FromString)
        for start in range(0, KEYS, COUNTS[-1]):
            numbers = range(start, start + COUNTS[-1])
            answer = ask(Request(space="images", keys=map(key, numbers)), timeout=30, wait_for_ready=True)
            if answer.vectors != vectors[start : numbers.stop].tobytes() or 0 in answer.found:
                raise RuntimeError(f"{server.command.name} answers something else")


def bodies(keys: int) -> list[bytes]:
    """Framed lookups of keys anywhere."""
    random = np.random.default_rng(keys)
    return [
        frame(Request(space="images", keys=map(key, random.integers(0, KEYS, keys))).SerializeToString())
        for _ in range(BODIES)
    ]


def answer_bytes(keys: int) -> int:
    """How long a good answer is, with its frame."""
    answer = Response(
        vectors=bytes(2 * DIMENSION * keys),
        found=bytes(keys),
        version=1,
        dtype="float16",
        dimension=DIMENSION,
    )
    return len(frame(answer.SerializeToString()))


def by_grpc(server: Server, keys: int, effort: Effort) -> Callable[[], Sample]:
    """What loads a server for one round."""
    asked, size = bodies(keys), answer_bytes(keys)
    rate = measure_grpc(server, asked, size, 400, IN_FLIGHT, METHOD).per_second
    calls = max(400, int(rate * effort.seconds) // BODIES * BODIES)
    return lambda: measure_grpc(server, asked, size, calls, IN_FLIGHT, METHOD)


def by_http(server: Server, keys: int, effort: Effort) -> Callable[[], Sample]:
    """The same with JSON."""
    random = np.random.default_rng(keys)
    asked = [
        json.dumps({"keys": [key(number) for number in random.integers(0, KEYS, keys)]}).encode()
        for _ in range(BODIES)
    ]
    path = "/v1/archive/images:lookup"
    return lambda: measure_http(server, path, "application/json", asked, effort.seconds)


def at_half_load(found: dict[str, Server], effort: Effort) -> None:
    """Latency of 100 keys, calls coming at random at half of the rate that each server can do.

    Beside it stands what others take of the two cores meanwhile.
    """
    asked, size = bodies(100), answer_bytes(100)
    rates = {
        name: measure_grpc(server, asked, size, 4000, IN_FLIGHT, METHOD).per_second / 2
        for name, server in found.items()
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    floors = []
    for seed in range(effort.rounds):
        floors.append(taken.measured())
        for name, server in found.items():
            spent[name].append(at_random(server, asked, rates[name], effort.seconds, seed))
    lines = [("100 keys a lookup, at half load", "lookups/s asked for", "p50 ms", "p99 ms")]
    for name, rounds in spent.items():
        p50, p99 = zip(*rounds, strict=True)
        lines.append((name, f"{rates[name]:,.0f}", spread(p50), spread(p99)))
    for whose, watched in zip(("server's", "load's"), zip(*floors, strict=True), strict=True):
        part = 100 * middle([one.part for one in watched])
        floor = spread([one.p99_milliseconds for one in watched])
        lines.append((f"until the {whose} core is free", f"others have {part:.0f} %", "", floor))
    print_lines(lines)
    slowest = [p99 for _, p99 in spent[LMDB]]
    told = f"gRPC, 100 keys from LMDB at half load ({rates[LMDB]:,.0f} lookups/s), p99 < 1 ms"
    verdict(told, middle(slowest) < 1, f"{spread(slowest)} ms")


def at_random(
    server: Server, asked: list[bytes], per_second: float, seconds: float, seed: int
) -> tuple[float, float]:
    """The p50 and the p99 of calls that come at random, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        calls = int(per_second * seconds) // BODIES * BODIES
        load = H2load(Path(folder), server.ports["grpc"], asked, calls, METHOD)
        try:
            load.open_loop(per_second, seed)
            p50, p99 = np.percentile(load.finish(answer_bytes(100)).spent * 1e3, (50, 99))
        finally:
            load.stop()
    return float(p50), float(p99)
