"""Lookups over gRPC and REST: an archive from its cache and from LMDB, beside a plain dict behind grpcio.

20,000 keys of 256 numbers of float16, all found; each answer was compared with what was stored once. All keys
are asked for in turns, each time in another order: 10 MB, and next to none of those from LMDB are in the
64 KiB of memory that a cache has at the least. The servers' own metrics say how many were. The dict is served
by ten threads, by one and by grpc.aio; the best of them counts. The server has one core, the load another.
What counts is the server's processor time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import frames, taken
from benchmarks.load import Outcome, Sample, measure_http, measured
from benchmarks.processes import Command, Server, http_post, running
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, table, verdict
from headrace.archive.operations.open_archive import open_archive_file
from headrace.base.tensors import Array
from headrace.frontends.transport.grpc_framing import frame
from headrace.frontends.wire import protos

KEYS = 20_000
DIMENSION = 256
COUNTS = (1, 100, 2000)
METHOD = "/headrace.archive.v1.Archive/Lookup"
IN_FLIGHT = 16
ORDERS = 5
JSON_BODIES = 64
JSON_PATH = "/v1/archive/images:lookup"
CACHED, LMDB = "archive, cache", "archive, LMDB"
DICTS = {"dict, grpcio, 10 threads": 10, "dict, grpcio, 1 thread": 1, "dict, grpc.aio": 0}
ECHO, ECHO_GRPCIO = "no lookup, headrace", "no lookup, grpcio"
SETTINGS = f"""
[spaces.images]
dimension = {DIMENSION}
dtype = "float16"

[cache]
size_bytes = """
SMALLEST_CACHE_BYTES = 2**16
MOST_FROM_ELSEWHERE = 0.05
"""Where more of the keys from LMDB came from memory, or the reverse, the benchmark stops."""
LOADS = (0.5, 0.1)
LATENCY_KEYS = 100

Cpu = Mapping[str, list[float]]

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
    """Measure all in turns for each number of keys, then the front ends, JSON, and latency.

    Args:
        effort: How much measuring is done.
    """
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as found:
        cpu = {keys: of_grpc(found, keys, effort) for keys in COUNTS}
        for keys in COUNTS:
            of_json(found[CACHED], keys, middle(cpu[keys][CACHED]), effort)
        at_loads(found, cpu[LATENCY_KEYS], effort)


def of_grpc(found: Mapping[str, Server], keys: int, effort: Effort) -> Cpu:
    """Measure lookups of so many keys, and the front ends with nothing to look up; the CPU of each round."""
    print(f"{keys} keys a lookup, gRPC, {IN_FLIGHT} in flight", flush=True)
    with tempfile.TemporaryDirectory() as folder, echoes(keys) as without:
        asked = Asked(Path(folder), keys)
        before = {name: origins(found[name]) for name in (CACHED, LMDB)}
        rounds = interleaved(
            {name: asked.by_grpc(server, effort) for name, server in (found | without).items()}, effort.rounds
        )
        parts = {name: told_origins(name, before[name], origins(found[name])) for name in before}
    table(rounds, keys)
    print(f"  found in memory by their own metrics: {parts[CACHED]:.1%} and {parts[LMDB]:.1%}")
    cpu = {name: [one.cpu_microseconds for one in samples] for name, samples in rounds.items()}
    best = best_dict(cpu)
    for name in (CACHED, LMDB):
        more = ratios(cpu[best], cpu[name])
        told = f"gRPC, {keys} keys, {name}: CPU a lookup ≤ ⅓ of the best dict's ({best})"
        verdict(told, middle(more) >= 3, f"1/{spread(more)}")
    front = spread(ratios(cpu[ECHO_GRPCIO], cpu[ECHO]))
    print(f"  headrace's front end alone: 1/{front} of grpcio's CPU", flush=True)
    return cpu


def best_dict(cpu: Cpu) -> str:
    """Which way to serve the dict costs least."""
    return min(DICTS, key=lambda name: middle(cpu[name]))


def origins(server: Server) -> tuple[float, float]:
    """How many keys a server has found in memory, and how many in its store, since it started."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['http']}/metrics", timeout=10) as answer:
        families = {one.name: one for one in text_string_to_metric_families(answer.read().decode())}
    cached, stored = (
        sum(sample.value for sample in families[f"headrace_archive_{name}_keys"].samples if sample.value)
        for name in ("cached", "stored")
    )
    return cached, stored


def told_origins(name: str, before: tuple[float, float], after: tuple[float, float]) -> float:
    """Which part of the keys came from memory.

    Raises:
        RuntimeError: It is not what was to be measured.
    """
    cached, stored = (later - earlier for earlier, later in zip(before, after, strict=True))
    part = cached / (cached + stored)
    if (part if name == LMDB else 1 - part) > MOST_FROM_ELSEWHERE:
        raise RuntimeError(f"{name}: {part:.1%} of the keys were found in memory, so this says nothing of it")
    return part


@contextmanager
def echoes(keys: int) -> Iterator[dict[str, Server]]:
    """What the front ends cost alone: answers of the same size, nothing looked up, parsed or put together."""
    program = (sys.executable, "-m", "benchmarks.peers.archive_echo", "--port", "{port}", "--keys", str(keys))
    ours, theirs = Command(ECHO, (*program, "headrace")), Command(ECHO_GRPCIO, (*program, "grpcio"))
    with running(ours) as headrace, running(theirs) as by_grpcio:
        yield {ECHO: headrace, ECHO_GRPCIO: by_grpcio}


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, Server]]:
    """The archives and the dicts, running, each of whose answers has been compared."""
    vectors = some_vectors()
    (folder / "cached.toml").write_text(f"{SETTINGS}{2**28}\n")
    (folder / "uncached.toml").write_text(f"{SETTINGS}{SMALLEST_CACHE_BYTES}\n")
    with open_archive_file(folder / "cached.toml") as archive:
        archive.put("images", [key(number) for number in range(KEYS)], vectors)
    program = (str(Path(sys.executable).with_name("headrace")), "archive", "serve")
    ports = ("--http-port", "0", "--grpc-port", "0", "--archive")
    announces = (("http", r"REST\s+http://\S+:(\d+)"), ("grpc", r"gRPC\s+\S+:(\d+)"))
    plain = (sys.executable, "-m", "benchmarks.peers.archive_dict", "--port", "{port}", "--threads")
    commands = (
        Command(CACHED, (*program, *ports, str(folder / "cached.toml")), announces=announces),
        Command(LMDB, (*program, *ports, str(folder / "uncached.toml")), announces=announces),
        *(Command(name, (*plain, str(threads))) for name, threads in DICTS.items()),
    )
    with ExitStack() as held:
        found = {command.name: held.enter_context(running(command)) for command in commands}
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


def in_turns(keys: int, lookups: int) -> Iterator[list[str]]:
    """The keys of lookups: all there are in one order, then in another."""
    random = np.random.default_rng(keys)
    order: list[int] = []
    for _ in range(lookups):
        if len(order) < keys:
            order = random.permutation(KEYS).tolist()
        yield [key(number) for number in order[:keys]]
        del order[:keys]


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


@dataclass
class Late:
    """A turn of an open loop: latencies from when a call was due, in milliseconds.

    Attributes:
        came: Calls a second that were made.
        busy: The part of its core that the server used.
        late: How long after it was due a call was sent, at the 99th percentile.
        p50: The middle latency.
        p99: That of the slowest hundredth.
    """

    came: float
    busy: float
    late: float
    p50: float
    p99: float


class Asked:
    """Lookups of so many keys over gRPC."""

    def __init__(self, folder: Path, keys: int) -> None:
        """Write them down in an empty folder."""
        self._folder, self._size = folder, answer_bytes(keys)
        lookups = in_turns(keys, KEYS // keys * (1 if keys == 1 else ORDERS))
        (folder / "bodies").write_bytes(
            b"".join(frame(Request(space="images", keys=some).SerializeToString()) for some in lookups)
        )

    def _calls(self, server: Server, seconds: float, *how: str) -> frames.Seen:
        return frames.calls(self._folder, server.ports["grpc"], METHOD, self._size, seconds, how)

    def by_grpc(self, server: Server, effort: Effort) -> Callable[[], Sample]:
        """Warm a server up, and say how to load it for one round."""

        def closed(seconds: float) -> Sample:
            busy = []

            def load() -> Outcome:
                seen = self._calls(server, seconds, "--in-flight", str(IN_FLIGHT))
                busy.append(seen.busy)
                p50, p99 = np.percentile(seen.spent, (50, 99)) * 1e3
                mean = float(seen.spent.mean()) * 1e3
                return Outcome(seen.good, len(seen.spent) - seen.good, seen.seconds, p50, p99, mean)

            return replace(measured(server, load), load_core_busy=busy[0])

        closed(effort.seconds / 4)
        return lambda: closed(effort.seconds)

    def at_random(self, server: Server, per_second: float, seconds: float, seed: int) -> Late:
        """Calls that come at random.

        Raises:
            RuntimeError: Some failed.
        """
        before = server.counters().cpu_seconds
        seen = self._calls(server, seconds, "--per-second", str(per_second), "--seed", str(seed))
        if seen.good < len(seen.spent):
            raise RuntimeError(f"{len(seen.spent) - seen.good} calls failed")
        p50, p99 = np.percentile(seen.spent, (50, 99)) * 1e3
        busy = (server.counters().cpu_seconds - before) / seen.seconds
        late = float(np.percentile(seen.late, 99)) * 1e3
        return Late(len(seen.spent) / seen.seconds, busy, late, float(p50), float(p99))


def of_json(server: Server, keys: int, by_grpc: float, effort: Effort) -> None:
    """What a lookup costs as JSON, beside the CPU that it costs over gRPC; many keys one lookup at a time."""
    asked = [json.dumps({"keys": some}).encode() for some in in_turns(keys, JSON_BODIES)]
    size = len(http_post(server.ports["http"], JSON_PATH, asked[0], "application/json"))
    if keys < COUNTS[-1]:
        print(f"{keys} keys a lookup, JSON over HTTP/1.1, 64 in flight", flush=True)

        def load() -> Sample:
            return measure_http(server, JSON_PATH, "application/json", asked, effort.seconds)
    else:
        print(f"{keys} keys a lookup, JSON over HTTP/1.1, one after the other", flush=True)

        def load() -> Sample:
            return measured(server, lambda: one_by_one(server, asked, effort.seconds))

    rounds = interleaved({CACHED: load}, effort.rounds)
    table(rounds, keys)
    more = spread([one.cpu_microseconds / by_grpc for one in rounds[CACHED]], 1)
    longer = size / answer_bytes(keys)
    print(f"  JSON, {keys} keys: {more} x the CPU of gRPC, and answers {longer:.1f} x as long", flush=True)


def one_by_one(server: Server, asked: list[bytes], seconds: float) -> Outcome:
    """Ask over REST from this process."""
    spent: list[float] = []
    began = last = time.perf_counter()
    while last - began < seconds:
        http_post(server.ports["http"], JSON_PATH, asked[len(spent) % len(asked)], "application/json")
        spent.append(time.perf_counter() - last)
        last += spent[-1]
    p50, p99 = np.percentile(spent, (50, 99)) * 1e3
    return Outcome(len(spent), 0, last - began, p50, p99, float(np.mean(spent)) * 1e3)


def at_loads(found: Mapping[str, Server], cpu: Cpu, effort: Effort) -> None:
    """Latency of 100 keys, calls coming at random, at rates that keep the LMDB server's core busy for a part.

    All are asked at the same rates; the dict as it is cheapest, and headrace's front end with no lookup.
    Beside them stands what others take of the two cores meanwhile, and how late the load was itself. A turn
    is twice as long as elsewhere, as a p99 needs calls.
    """
    best = best_dict(cpu)
    full = 1e6 / middle(cpu[LMDB])
    with tempfile.TemporaryDirectory() as folder, echoes(LATENCY_KEYS) as without:
        asked = Asked(Path(folder), LATENCY_KEYS)
        sides = {name: found[name] for name in (LMDB, CACHED, best)} | {ECHO: without[ECHO]}
        for part in LOADS:
            floors = []
            spent: dict[str, list[Late]] = {name: [] for name in sides}
            for seed in range(effort.rounds):
                floors.append(taken.measured())
                for name, server in sides.items():
                    spent[name].append(asked.at_random(server, full * part, 2 * effort.seconds, seed))
            print_late(part, full * part, spent)
            for whose, watched in zip(("server's", "load's"), zip(*floors, strict=True), strict=True):
                theirs = 100 * middle([one.part for one in watched])
                floor = spread([one.p99_milliseconds for one in watched])
                print(f"  others have {theirs:.0f} % of the {whose} core; who never sleeps waits {floor} ms")
            slowest = [one.p99 for one in spent[LMDB]]
            told = f"gRPC, {LATENCY_KEYS} keys from LMDB, its core {part:.0%} busy, from when due: p99 < 1 ms"
            verdict(told, middle(slowest) < 1, f"{spread(slowest)} ms")


def print_late(part: float, asked: float, spent: Mapping[str, list[Late]]) -> None:
    """Print the medians of an open loop's turns."""
    head = (f"{LATENCY_KEYS} keys, {asked:,.0f} lookups/s asked for ({part:.0%})", "came", "core busy")
    lines = [(*head, "sent late, p99 ms", "p50 ms", "p99 ms")]
    for name, rounds in spent.items():
        came, busy = middle([one.came for one in rounds]), middle([one.busy for one in rounds])
        late, p50, p99 = (spread([getattr(one, what) for one in rounds]) for what in ("late", "p50", "p99"))
        lines.append((name, f"{came:,.0f}", f"{busy:.0%}", late, p50, p99))
    print_lines(lines)
