"""``headrace serve DIR``: answer predictions from the models in a directory."""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import logs
from headrace.cli import models, numbers, verbs
from headrace.config import ServerConfig, server_config, with_flags
from headrace.config.checks import DAY
from headrace.errors import ConfigError
from headrace.terminal import counted, table

if TYPE_CHECKING:
    from headrace.archive.archive import Archive
    from headrace.servable import Signature
    from headrace.server import Server

_EXAMPLES = """examples:
  headrace serve models
  headrace serve models --http-port 0 --grpc-port 0    any free ports, printed
  headrace serve models --config headrace-server.toml --host 0.0.0.0
  HEADRACE_SERVE_LOG_FORMAT=json headrace serve models
"""
_Kind = str | tuple[str, ...]
_TYPES: dict[str, Callable[[str], Callable[[str], float | Path]]] = {
    "N": numbers.whole,
    "S": functools.partial(numbers.seconds, most=DAY),
    "FILE": lambda _: Path,
}
SETTINGS: dict[str, tuple[_Kind, str]] = {
    "host": ("HOST", "the address to listen on"),
    "http_port": ("N", "the port of REST; 0 = any free one"),
    "grpc_port": ("N", "the port of gRPC; 0 = any free one"),
    "http_server": (("h2corn", "uvicorn"), "what serves REST"),
    "grpc_server": (("h2corn", "grpcio"), "what serves gRPC"),
    "poll_seconds": ("S", "how often to look for new versions; 0 = once, at the start"),
    "load_threads": ("N", "how many models load at the same time"),
    "allow_code": ("switch", "load models that are Python code (model.py)"),
    "admin": ("switch", "let clients load and unload models (repository API)"),
    "drain_seconds": ("S", "how long a stopping server may take to answer what it has accepted"),
    "drain_lead_seconds": (
        "S",
        "how long to accept requests after SIGTERM; each answer says that it stops",
    ),
    "log_format": (("text", "json"), "logs for people or for machines"),
    "log_level": (("debug", "info", "warning", "error"), "the least severe level"),
    "tensorflow_metrics": ("switch", "give metrics by TensorFlow Serving's names, too"),
    "triton_metrics": ("switch", "give metrics by Triton's names, too"),
    "archive": ("FILE", "serve an archive of embeddings, too: its archive.toml"),
    "limits.max_message_bytes": ("N", "the largest request, decompressed"),
    "limits.max_inflight_bytes": ("N", "what all requests may hold together"),
    "limits.body_timeout_seconds": ("S", "how long a request's body may take to arrive"),
    "limits.max_connections": ("N", "how many connections may be open; 0 = by the process's file limit"),
    "limits.max_json_depth": ("N", "how deep JSON may nest"),
    "limits.max_values": ("N", "how many values of a request may be decoded one by one"),
    "limits.max_expanded_bytes": ("N", "what a request may take once that is repeated or spread"),
    "limits.max_expansion": ("N", "how many times its size a compressed message may open to"),
    "limits.max_streams_per_connection": ("N", "how many requests one HTTP/2 connection may have open"),
}
"""By the names of ``ServerConfig``: what stands for a value in the help, and what is told there."""

_LEAST_FILES = 96
_SETTLE_SECONDS = 10.0


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="serve",
            help="serve the models in a directory over REST and gRPC",
            description="Serve DIR/NAME/N/… over REST and gRPC, and new versions as they appear.",
            examples=_EXAMPLES,
            failure="it cannot go on",
            run=run,
            own_keys=ServerConfig.__struct_fields__,
            own_help=", and [limits] and [models.NAME]",
        ),
    )
    parser.add_argument(
        "models", metavar=models.DIRECTORY, type=Path, nargs="?", help="the directory of models"
    )
    add_settings(parser, SETTINGS)


def add_settings(parser: argparse.ArgumentParser, keys: Iterable[str]) -> None:
    """Add the options of some of ``ServerConfig``'s settings.

    Args:
        parser: The verb.
        keys: Which, of ``SETTINGS``.
    """
    for key in keys:
        _add_setting(parser, key, *SETTINGS[key])


def _add_setting(parser: argparse.ArgumentParser, key: str, kind: _Kind, told: str) -> None:
    """Add the option of one of ``ServerConfig``'s settings; what it may be is checked there."""
    default: object = functools.reduce(getattr, key.split("."), ServerConfig())
    name = key.replace(".", "-").replace("_", "-")
    if kind == "switch":
        parser.add_argument(f"--{name}", dest=key, action="store_true", default=None, help=told)
        return
    shown = "none" if default is None else f"{default:g}" if isinstance(default, float) else default
    how: dict[str, Any] = {"metavar": kind}
    if isinstance(kind, tuple):
        how = {"choices": kind}
    elif kind in _TYPES:
        how["type"] = _TYPES[kind](name)
    parser.add_argument(f"--{name}", dest=key, help=f"{told} (default {shown})", **how)


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    return serve(options, _config(options))


def serve(options: argparse.Namespace, config: ServerConfig) -> int:
    """Serve until told to stop.

    Args:
        options: Of the verb: ``models``, a directory or None, and ``json``.
        config: The settings.
    """
    started = time.monotonic()
    _expect_open_files()
    _ask_for_huge_pages()
    logs.set_up(config.log_format, config.log_level)
    _schedule_as_batch()
    # Imported here: the other verbs start without the engine, the codecs and the event loop.
    import uvloop  # noqa: PLC0415

    from headrace import server  # noqa: PLC0415

    async def announce(serving: Server) -> None:
        seconds = time.monotonic() - started
        if not options.json:
            _print_addresses(serving, options.models, seconds)
        await serving.engine.settle(_SETTLE_SECONDS)
        if options.json:
            said = {**_addresses(serving), "start_seconds": round(seconds, 3), **_models(serving)}
            verbs.print_json(said if serving.archive is None else {**said, **_spaces(serving.archive)})
            sys.stdout.flush()
        else:
            _print_models(serving)

    return uvloop.run(server.run(options.models, config, announce))


def _config(options: argparse.Namespace) -> ServerConfig:
    config = ServerConfig()
    if options.config is not None:
        config = server_config(options.own_settings, str(options.config), options.config.absolute().parent)
    if options.models is None and not (config.models or config.archive or options.archive):
        raise ConfigError(
            "nothing to serve: name a directory of models, models in --config FILE, or an --archive FILE"
        )
    if options.models is not None and not models.is_directory(options.models):
        way_out = "" if os.path.exists(options.models) else f"; `headrace example {options.models}` makes one"
        raise ConfigError(f"DIR: {options.models} is not a directory{way_out}")
    if options.models is not None:
        models.expect_no_version(options.models)
    return with_flags(config, **{key: getattr(options, key) for key in SETTINGS})


def _expect_open_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < _LEAST_FILES:
        raise ConfigError(
            f"the process may have {most} files open; expected at least {_LEAST_FILES}, for ports, models "
            "and connections: raise its limit (ulimit -n)"
        )


def _ask_for_huge_pages() -> None:
    """Start over with glibc's heap on huge pages, which only the environment of a new process can ask for.

    Embedding tables are read at random, so every row otherwise misses the address cache (6 % of a small
    request's time); and a 64 MB model is freed in 0.4 ms instead of 4, in which nobody is answered.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and "glibc.malloc.hugetlb" not in tunables:
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, "glibc.malloc.hugetlb=1")))
        with suppress(OSError):  # where no program may be started, serving works all the same
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _schedule_as_batch() -> None:
    """Tell the scheduler not to interrupt whoever runs for whoever wakes up.

    On one core, waking a model's thread otherwise preempts the thread that is still taking requests: 1.5
    switches a request, and with this 0.04. Threads inherit it, so it comes before any is started.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or forbidden here: serving works all the same
        return


# --- what is printed ---


def _print_addresses(serving: Server, directory: Path | None, seconds: float) -> None:
    host, port = serving.http_address
    grpc_host, grpc_port = serving.grpc_address
    what = directory or ("the configured models" if serving.archive is None else "an archive")
    print(f"headrace serves {what}, {seconds:.2f} s after its start")
    print(f"  REST  http://{_bracketed(host)}:{port}")
    print(f"  gRPC  {_bracketed(grpc_host)}:{grpc_port}", flush=True)


def _addresses(serving: Server) -> dict[str, object]:
    def of(address: tuple[str, int]) -> dict[str, object]:
        return {"host": address[0], "port": address[1]}

    return {"http": of(serving.http_address), "grpc": of(serving.grpc_address)}


def _models(serving: Server) -> dict[str, object]:
    manager = serving.engine.manager
    said = [
        {
            "name": model,
            "default": manager.default_version(model),
            "versions": [
                {"version": one.version, "state": one.state.value, "error": one.error or None}
                for one in manager.status(model)
            ],
            "problems": list(manager.warnings(model)),
        }
        for model in manager.models()
    ]
    not_served = [{"name": name, "problem": why} for name, why in sorted(manager.unusable.items())]
    return {"models": said, "not_served": not_served}


def _spaces(archive: Archive) -> dict[str, object]:
    records = {space: archive.record(space) for space in archive.config.spaces}
    return {"spaces": [{"space": space, "default": one.default or None} for space, one in records.items()]}


def _print_models(serving: Server) -> None:
    manager = serving.engine.manager
    rows = [("model", "version", "state", "runtime", "inputs → outputs")]
    first: tuple[str, Signature] | None = None
    for model in manager.models():
        default = manager.default_version(model)
        loaded = manager.get(model) if default is not None else None
        for status in manager.status(model):
            number = f"{status.version}{' (default)' if status.version == default else ''}"
            serves = loaded is not None and status.version == default
            runtime, shape = (
                (loaded.platform, _shape(loaded.signatures)) if serves and loaded else ("", status.error)
            )
            rows.append((model, number, status.state.value, runtime, shape))
        if not manager.status(model):
            rows.append((model, "", "not served", "", "; ".join(manager.warnings(model))))
        if loaded is not None and first is None:
            first = model, next(iter(loaded.signatures.values()))
    rows += [(name, "", "not served", "", why) for name, why in sorted(manager.unusable.items())]
    if serving.archive is None or len(rows) > 1:
        print(table(rows, indent="  "))
    if not manager.models() and serving.archive is None:
        print("  no models yet: versions that appear in the directory are served as they come")
    if serving.archive is not None:
        _print_spaces(serving, serving.archive)
    if first is not None:
        print(f"try it:\n  {_curl(serving, *first)}")
    print(end="", flush=True)


def _print_spaces(serving: Server, archive: Archive) -> None:
    rows = [("space", "version", "values", "made by")]
    for space, settings in archive.config.spaces.items():
        record = archive.record(space)
        version = record.version(record.default)
        numbers_made = "" if version is None else f"{version.dimension} of {version.dtype}"
        if version is not None and version.columns:
            numbers_made = counted(len(version.columns), "column")
        maker = settings.embedder or ("load, feed or put" if settings.is_table else "put")
        rows.append((space, str(record.default or ""), numbers_made, maker))
    print(table(rows, indent="  "))
    host, port = serving.http_address
    body = json.dumps({"keys": ["a key"]})
    print(f"look up:\n  curl -d '{body}' http://{_bracketed(host)}:{port}/v1/archive/{rows[1][0]}:lookup")


def _shape(signatures: object) -> str:
    signature: Signature = next(iter(signatures.values()))  # type: ignore[attr-defined]
    inputs = ", ".join(str(spec) for spec in signature.inputs)
    return f"{inputs} → {', '.join(str(spec) for spec in signature.outputs)}"


def _curl(serving: Server, model: str, signature: Signature) -> str:
    """A line to paste into a shell: one made-up row for this model."""
    values = {
        spec.name: _sample(tuple(size or 1 for size in spec.shape), spec.dtype.kind)
        for spec in signature.inputs
    }
    row: object = values if len(values) > 1 else next(iter(values.values()))
    host, port = serving.http_address
    body = json.dumps({"instances": [row]})
    return f"curl -d '{body}' http://{_bracketed(host)}:{port}/v1/models/{model}:predict"


def _sample(shape: tuple[int, ...], kind: str) -> object:
    if not shape:
        return {"f": 1.0, "O": "text", "b": True}.get(kind, 1)
    return [_sample(shape[1:], kind) for _ in range(shape[0])]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
