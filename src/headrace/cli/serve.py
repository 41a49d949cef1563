"""``headrace serve DIR``: serve predictions from the models in a directory."""

from __future__ import annotations

import argparse
import faulthandler
import functools
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
from headrace.cli import common, models, number_types
from headrace.cli.announcement import announce
from headrace.config import ServerConfig, server_config, with_flags
from headrace.config.checks import DAY
from headrace.config.server import GrpcServer, HttpServer, LogFormat, LogLevel
from headrace.config.telemetry import STDOUT

if TYPE_CHECKING:
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
    config = _config(options)
    if options.models is None or options.models.suffix != ".py":
        _expect_models(options, config)
        return serve(options, config)
    # Imported late: only an app.py needs it.
    from headrace.cli.app_models import directory_of  # noqa: PLC0415

    options.app = options.models
    with directory_of(options.app, reload=options.reload) as options.models:
        return serve(options, with_flags(config, allow_code=True))


def serve(options: argparse.Namespace, config: ServerConfig) -> int:
    """Serve until stopped by a signal.

    Args:
        options: The verb's options: ``models``, a directory or None, and ``json``; ``app``, if the directory
            is that of an ``app.py``.
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
        await announce(serving, _shown(options), time.monotonic() - started, as_json=options.json)

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
    start = supervisor.Start(options.models, config, options.json, started, command, _shown(options))
    return asyncio.run(ends_in_time(supervisor.run(start, workers)))


def _shown(options: argparse.Namespace) -> Path | None:
    """Return the path of the models as the user gave it."""
    shown: Path | None = getattr(options, "app", options.models)
    return shown


def _config(options: argparse.Namespace) -> ServerConfig:
    """Return the settings; call it before an app.py is imported, which may change the working directory."""
    config = ServerConfig()
    if options.config is not None:
        config = server_config(options.own_settings, str(options.config), options.config.absolute().parent)
    return with_flags(config, **{key: _absolute(getattr(options, key)) for key in SETTINGS})


def _expect_models(options: argparse.Namespace, config: ServerConfig) -> None:
    if options.models is None and not (config.models or config.archive):
        raise ConfigError(
            "nothing to serve: name a directory of models, models in --config FILE, or an --archive FILE"
        )
    if options.models is not None and not models.is_directory(options.models):
        raise ConfigError(f"DIR: {options.models} is not a directory{_way_out(options.models)}")
    if options.models is not None:
        models.expect_no_version(options.models)


def _way_out(place: Path) -> str:
    exists = os.path.exists(place)
    if exists and models.is_model_file(place):
        command = f"headrace publish models/NAME {place}"
        return f" of models; `{command}` puts it into one, for `headrace serve models`"
    if exists or place.suffix:
        return "; name a directory of models, or a Python file (.py) with endpoints"
    return f"; `headrace example {place}` makes one"


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
