"""``headrace serve DIR``: serve predictions from the models in a directory."""

from __future__ import annotations

import argparse
import faulthandler
import functools
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from headrace.base import cpus, logs, memory
from headrace.base.errors import ConfigError
from headrace.base.terminal import counted, table
from headrace.cli import common, models, number_types
from headrace.config import ServerConfig, server_config, with_flags
from headrace.config.checks import DAY
from headrace.config.server import GrpcServer, HttpServer, LogFormat, LogLevel
from headrace.config.telemetry import STDOUT

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.model.servable import Signature
    from headrace.server.server import Server

_log = logging.getLogger(__name__)

_EXAMPLES = """examples:
  headrace serve models
  headrace serve models --http-port 0 --grpc-port 0    any free ports, printed
  headrace serve models --config headrace-server.toml --host 0.0.0.0
  headrace serve app.py --reload    the endpoints of a Python file, again whenever it changes
  HEADRACE_SERVE_LOG_FORMAT=json headrace serve models
"""
_Kind = str | tuple[str, ...]
_TYPES: dict[str, Callable[[str], Callable[[str], float | str | Path | tuple[str, ...]]]] = {
    "N": number_types.whole,
    "S": functools.partial(number_types.seconds, most=DAY),
    "P": number_types.fraction,
    "FILE": lambda _: Path,
    "NAMES": lambda _: common.names,
    "N|auto": number_types.whole_or_auto,
}
SETTINGS: dict[str, tuple[_Kind, str]] = {
    "host": ("HOST", "the address to listen on"),
    "http_port": ("N", "the port of REST; 0 = any free one"),
    "grpc_port": ("N", "the port of gRPC; 0 = any free one"),
    "http_server": (get_args(HttpServer), "the server library for REST"),
    "grpc_server": (get_args(GrpcServer), "the server library for gRPC"),
    "poll_seconds": ("S", "how often to look for new versions; 0 = only at the start"),
    "load_threads": ("N", "how many models load at the same time"),
    "allow_code": ("switch", "load models that are Python code (model.py)"),
    "isolate": ("switch", "load each version in a process of its own"),
    "admin": ("switch", "let clients load and unload models, and forget keys of an archive"),
    "admin_port": ("N", "a separate port for administration, which the others then refuse; 0 = any free one"),
    "admin_socket": ("FILE", "the same at a Unix socket with this path, for the server's own user only"),
    "admin_metrics": ("switch", "serve metrics at the port or path of administration only"),
    "handover": (
        "FILE",
        "take over the ports of the server at this path, then offer them to the next server there",
    ),
    "handover_seconds": (
        "S",
        "with --handover: how long models may take to become ready before the handover is abandoned",
    ),
    "drain_seconds": ("S", "how long a stopping server may take to answer what it has accepted"),
    "drain_lead_seconds": (
        "S",
        "how much of that time to keep accepting requests, while each answer announces the stop",
    ),
    "max_connection_age_seconds": (
        "S",
        "maximum age of a connection, before its client has to open a new one; 0 = any age",
    ),
    "log_format": (get_args(LogFormat), "logs for people or for machines"),
    "log_level": (get_args(LogLevel), "the least severe level"),
    "tensorflow_metrics": ("switch", "export metrics under TensorFlow Serving's names, too"),
    "triton_metrics": ("switch", "export metrics under Triton's names, too"),
    "load_reports": ("switch", "report the load of the server in every answer, for balancers (ORCA)"),
    "tls.certificate": (
        "FILE",
        "encrypt all connections: the server's certificate chain (PEM), its own certificate first",
    ),
    "tls.key": ("FILE", "the private key of the certificate (PEM)"),
    "tls.client_ca": (
        "FILE",
        "accept only clients with a certificate signed by one of these authorities (PEM)",
    ),
    "follow_links": ("switch", "follow links inside a version that lead out of its directory"),
    "trusted_owners": ("NAMES", "load files of these users as well, separated by commas"),
    "signing_keys": ("FILE", "serve only versions whose signature one of these public keys (PEM) verifies"),
    "tracing.enabled": ("switch", "record calls as spans of OpenTelemetry (extra tracing)"),
    "tracing.endpoint": ("URL", "where spans are sent, which enables it: http://HOST:4317"),
    "tracing.protocol": (("grpc", "http"), "the OTLP protocol of the collector"),
    "tracing.sample_rate": ("P", "the fraction of traces started here that is recorded"),
    "tracing.max_traces_per_second": ("N", "maximum number of recorded calls per second"),
    "tracing.service_name": ("NAME", "the name of this server in traces"),
    "access_log.path": ("FILE", "write a line for each call; - = to standard output"),
    "access_log.sample": (
        "P",
        "the fraction of answered calls to log; slow calls and errors are always logged",
    ),
    "access_log.slow_seconds": ("S", "an answered call that takes this long is slow"),
    "audit.file": ("FILE", "record in this file who loads, unloads and forgets over the network"),
    "archive": ("FILE", "serve an archive of embeddings, too: its archive.toml"),
    "workers": ("N|auto", "how many processes serve, on the same ports; auto = one per processor"),
    "worker_timeout_seconds": ("S", "how long a worker may be unresponsive before it is ended and replaced"),
    "access.file": ("FILE", "who may do what: a file of keys, as created by headrace key new"),
    "cors.origins": ("NAMES", "allow web pages of these origins (CORS), separated by commas; * = any"),
    "limits.max_message_bytes": ("N", "maximum size of a request, decompressed"),
    "limits.max_inflight_bytes": ("N", "maximum memory of all requests together"),
    "limits.body_timeout_seconds": ("S", "how long a request's body may take to arrive"),
    "limits.max_connections": ("N", "maximum number of open connections; 0 = as many as ulimit -n allows"),
    "limits.max_json_depth": ("N", "maximum nesting depth of JSON"),
    "limits.max_values": ("N", "maximum number of values of a request that are decoded one by one"),
    "limits.max_expanded_bytes": (
        "N",
        "maximum size of a request once values sent once, such as a context, are copied to every row",
    ),
    "limits.max_expansion": (
        "N",
        "maximum ratio of the decompressed size of a message to its compressed size",
    ),
    "limits.max_streams_per_connection": (
        "N",
        "maximum number of concurrent requests on one HTTP/2 connection",
    ),
}
"""Metavar, choices or kind, and help text of each option, by the names of ``ServerConfig``."""

_OTHERWISE = {"tracing.protocol": "grpc", "tracing.sample_rate": "1", "tracing.service_name": "headrace"}
"""Defaults in the help for settings whose defaults OpenTelemetry's own variables may change."""

_LEAST_FILES = 96
_STANDARD_ERROR = 2
_SETTLE_SECONDS = 10.0
_PART_OF_REQUESTS = 4
"""Divisor of the memory for the default cap on requests; responses may use half as much in addition."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="serve",
            help="serve the models in a directory over REST and gRPC",
            description="Serve DIR/NAME/N/… over REST and gRPC, and new versions as they appear.",
            examples=_EXAMPLES,
            failure="the server cannot continue",
            run=run,
            own_keys=ServerConfig.__struct_fields__,
            own_help=", and [limits], [tls], [access], [cors], [tracing], [access_log], [audit] and "
            "[models.NAME]",
        ),
    )
    parser.add_argument(
        "models",
        metavar=models.DIRECTORY,
        type=Path,
        nargs="?",
        help="the directory of models, or an app.py with endpoints",
    )
    parser.add_argument("--reload", action="store_true", help="load an app.py again whenever it changes")
    add_settings(parser, SETTINGS)


def add_settings(parser: argparse.ArgumentParser, keys: Iterable[str]) -> None:
    """Add the options of some of ``ServerConfig``'s settings.

    Args:
        parser: The verb.
        keys: Keys of ``SETTINGS``.
    """
    for key in keys:
        _add_setting(parser, key, *SETTINGS[key])


def _add_setting(parser: argparse.ArgumentParser, key: str, kind: _Kind, told: str) -> None:
    """Add the option of one of ``ServerConfig``'s settings; ``ServerConfig`` checks its values."""
    default: object = functools.reduce(getattr, key.split("."), ServerConfig())
    name = key.replace(".", "-").replace("_", "-")
    if kind == "switch":
        parser.add_argument(f"--{name}", dest=key, action="store_true", default=None, help=told)
        return
    shown = f"{default:g}" if isinstance(default, float) else default
    shown = _OTHERWISE.get(key, "none") if default in (None, ()) else shown
    how: dict[str, Any] = {"metavar": kind}
    if isinstance(kind, tuple):
        how = {"choices": kind}
    elif kind in _TYPES:
        how["type"] = _TYPES[kind](name)
    parser.add_argument(f"--{name}", dest=key, help=f"{told} (default {shown})", **how)


def run(options: argparse.Namespace) -> int:
    """Serve until stopped by a signal."""
    if options.models is None or options.models.suffix != ".py":
        return serve(options, _config(options))
    # Imported late: only an app.py needs it.
    from headrace.cli.app_models import directory_of  # noqa: PLC0415

    with directory_of(options.models, reload=options.reload) as options.models:
        return serve(options, with_flags(_config(options), allow_code=True))


def serve(options: argparse.Namespace, config: ServerConfig) -> int:
    """Serve until stopped by a signal.

    Args:
        options: The verb's options: ``models``, a directory or None, and ``json``.
        config: The settings.
    """
    started = time.monotonic()
    _expect_open_files()
    logs.set_up(config.log_format, config.log_level, serves=True)
    faulthandler.enable(_STANDARD_ERROR)  # so that a crash in native code prints a traceback
    _schedule_as_batch()
    config = within_memory(options, config, memory.allowed_bytes())
    workers = cpus.available() if config.workers == "auto" else config.workers
    if workers > 1:
        return _serve_with(workers, options, config, started)
    # Imported late: the other verbs start without the engine, the codecs and the event loop.
    import uvloop  # noqa: PLC0415

    from headrace.server import process  # noqa: PLC0415

    async def tell(serving: Server) -> None:
        await announce(serving, options.models, time.monotonic() - started, as_json=options.json)

    return uvloop.run(process.ends_in_time(process.run(options.models, config, tell)))


def within_memory(options: argparse.Namespace, config: ServerConfig, allowed: int | None) -> ServerConfig:
    """Cap the memory of all requests at a fraction of the available memory, unless the cap is set.

    Args:
        options: The parsed options: ``origins`` and ``own_settings``.
        config: The settings.
        allowed: Memory available to the whole server in bytes; None if unknown.
    """
    limits = config.limits
    if "limits.max_inflight_bytes" in options.origins:
        return config
    if "max_inflight_bytes" in options.own_settings.get("limits", {}):
        return config
    most = memory.at_most(
        limits.max_inflight_bytes, allowed, _PART_OF_REQUESTS, least=limits.max_message_bytes
    )
    if most == limits.max_inflight_bytes:
        return config
    _log.info(
        "requests may hold less than by default, because memory is limited",
        extra={"max_inflight_bytes": most, "memory_bytes": allowed},
    )
    return with_flags(config, **{"limits.max_inflight_bytes": most})


def _serve_with(workers: int, options: argparse.Namespace, config: ServerConfig, started: float) -> int:
    import asyncio  # noqa: PLC0415 - as above

    from headrace.server.process import ends_in_time  # noqa: PLC0415 - as above
    from headrace.workers import supervisor  # noqa: PLC0415 - only with workers

    command = (sys.executable, "-m", "headrace.cli.worker")
    start = supervisor.Start(options.models, config, options.json, started, command)
    return asyncio.run(ends_in_time(supervisor.run(start, workers)))


async def announce(serving: Server, directory: Path | None, seconds: float, *, as_json: bool) -> None:
    """Print the addresses of a server, and its models once they have been tried.

    Args:
        serving: The server, started.
        directory: The directory of models.
        seconds: Duration of the start in seconds.
        as_json: Whether to print one JSON object.
    """
    if not as_json:
        _print_addresses(serving, directory, seconds)
    await serving.engine.settle(_SETTLE_SECONDS)
    if as_json:
        said = {**_addresses(serving), "start_seconds": round(seconds, 3), **_models(serving)}
        common.print_json(said if serving.archive is None else {**said, **_spaces(serving.archive)})
        sys.stdout.flush()
    else:
        _print_models(serving)


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
    return with_flags(config, **{key: _absolute(getattr(options, key)) for key in SETTINGS})


def _absolute(value: object) -> object:
    """Make a path absolute, so that a model that changes the working directory does not affect it."""
    return value.absolute() if isinstance(value, Path) and value != STDOUT else value


def _expect_open_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < _LEAST_FILES:
        raise ConfigError(
            f"the process may have {most} files open; expected at least {_LEAST_FILES}, for ports, models "
            "and connections: raise its limit (ulimit -n)"
        )


def _schedule_as_batch() -> None:
    """Set SCHED_BATCH, so that a waking thread does not preempt a running one.

    On one core, waking a model's thread otherwise preempts the thread that still accepts requests: 1.5
    context switches per request instead of 0.04. Threads inherit the policy, so it is set before any start.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or forbidden: serving works without it
        return


# --- what is printed ---


def _print_addresses(serving: Server, directory: Path | None, seconds: float) -> None:
    host, port = serving.http_address
    grpc_host, grpc_port = serving.grpc_address
    what = directory or ("the configured models" if serving.archive is None else "an archive")
    print(f"headrace serves {what}, {seconds:.2f} s after its start")
    print(f"  REST  {_scheme(serving)}://{_bracketed(host)}:{port}")
    print(f"  gRPC  {_bracketed(grpc_host)}:{grpc_port}")
    if serving.admin is not None:
        for address in _admin_addresses(serving):
            print(f"  administration  {address}")
    sys.stdout.flush()


def _addresses(serving: Server) -> dict[str, object]:
    def of(address: tuple[str, int]) -> dict[str, object]:
        return {"host": address[0], "port": address[1]}

    said: dict[str, object] = {"http": of(serving.http_address), "grpc": of(serving.grpc_address)}
    return said if serving.admin is None else {**said, "administration": _admin_addresses(serving)}


def _admin_addresses(serving: Server) -> list[str]:
    config, found = serving.engine.config, []
    if serving.admin is not None and serving.admin.address is not None:
        host, port = serving.admin.address
        found.append(f"{_scheme(serving)}://{_bracketed(host)}:{port}")
    if config.admin_socket is not None:
        found.append(f"unix:{config.admin_socket}")
    return found


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
    address = f"{_scheme(serving)}://{_bracketed(host)}:{port}/v1/archive/{rows[1][0]}:lookup"
    print(f"look up:\n  {_curl_command(serving)} -d '{body}' {address}")


def _shape(signatures: object) -> str:
    signature: Signature = next(iter(signatures.values()))  # type: ignore[attr-defined]
    inputs = ", ".join(str(spec) for spec in signature.inputs)
    return f"{inputs} → {', '.join(str(spec) for spec in signature.outputs)}"


def _curl(serving: Server, model: str, signature: Signature) -> str:
    """Return a shell command that requests a prediction for one generated row."""
    values = {
        spec.name: _sample(tuple(size or 1 for size in spec.shape), spec.dtype.kind)
        for spec in signature.inputs
    }
    row: object = values if len(values) > 1 else next(iter(values.values()))
    host, port = serving.http_address
    body = json.dumps({"instances": [row]})
    address = f"{_scheme(serving)}://{_bracketed(host)}:{port}/v1/models/{model}:predict"
    return f"{_curl_command(serving)} -d '{body}' {address}"


def _scheme(serving: Server) -> str:
    return "https" if serving.engine.config.tls.wanted else "http"


def _curl_command(serving: Server) -> str:
    """Return the beginning of a curl command, with the options for certificates."""
    tls = serving.engine.config.tls
    if not tls.wanted:
        return "curl"
    return "curl --cacert CA.pem" + (" --cert CLIENT.pem --key CLIENT.key" if tls.client_ca else "")


def _sample(shape: tuple[int, ...], kind: str) -> object:
    if not shape:
        return {"f": 1.0, "O": "text", "b": True}.get(kind, 1)
    return [_sample(shape[1:], kind) for _ in range(shape[0])]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
