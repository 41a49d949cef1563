"""What TLS costs the server: REST and gRPC over kept connections, and REST over a new one each time."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trustme

from benchmarks.h2load import METHOD
from benchmarks.processes import Server, cores, on_core, running
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread
from benchmarks.sides import JSON_PATH, Contender, Wire, headrace

PLAIN, TLS = "plain", "TLS"
_KEPT, _NEW = 5000, 400
"""How many requests in each second of a turn: over kept connections, and over one of its own each."""

_JSON = ("--h1", "-H", "content-type: application/json")
_GRPC = ("-m", "16", "-H", "content-type: application/grpc", "-H", "te: trailers")
_LIMIT_SECONDS = 120


def run(effort: Effort) -> None:
    """Load a server with TLS and one without it in turns.

    Args:
        effort: How much measuring is done.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            PLAIN: stack.enter_context(running(headrace("json", name=PLAIN).command)),
            TLS: stack.enter_context(running(headrace("json", name=TLS, options=_options(folder)).command)),
        }
        lines = [("CPU µs per request", PLAIN, TLS, "ratio")]
        kept, new = (max(1, round(each * effort.seconds)) for each in (_KEPT, _NEW))
        for what, wire, many, connections, how in (
            ("REST, 64 kept connections", "json", kept, 64, _JSON),
            ("gRPC, 4 kept connections, 64 in flight", "grpc", kept, 4, _GRPC),
            ("REST, a new connection each time", "json", new, new, _JSON),
        ):
            (folder / wire).write_bytes(Contender(headrace(wire), servers[PLAIN], 1).bodies[0])
            measures = {
                name: _load(server, wire, folder / wire, name == TLS, many, ("-c", str(connections), *how))
                for name, server in servers.items()
            }
            spent = interleaved(measures, effort.rounds)
            more = ratios(spent[TLS], spent[PLAIN])
            lines.append((what, f"{middle(spent[PLAIN]):.1f}", f"{middle(spent[TLS]):.1f}", spread(more)))
        print_lines(lines)


def _options(folder: Path) -> tuple[str, ...]:
    made = trustme.CA().issue_cert("localhost", "127.0.0.1")
    made.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "cert.pem").write_bytes(b"".join(one.bytes() for one in made.cert_chain_pems))
    return ("--tls-certificate", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))


def _load(
    server: Server, wire: Wire, body: Path, encrypted: bool, many: int, how: tuple[str, ...]
) -> Callable[[], float]:
    scheme, path = "https" if encrypted else "http", JSON_PATH if wire == "json" else METHOD
    address = f"{scheme}://127.0.0.1:{server.ports['http' if wire == 'json' else 'grpc']}{path}"
    command = on_core(cores()[1], ["h2load", "-n", str(many), "-d", str(body), *how, address])

    def one_round() -> float:
        before = server.counters().cpu_seconds
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=True)
        if not re.search(rf"\b{many} succeeded, 0 failed", done.stdout):
            raise RuntimeError(f"not all were answered: {done.stdout}")
        return (server.counters().cpu_seconds - before) / many * 1e6

    one_round()
    return one_round
