"""A server's settings: ``headrace serve --config FILE``, and what its command line says over it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from headrace.config.access import AccessConfig
from headrace.config.checks import DAY, MINUTE, MOST_THREADS, one_of, seconds, whole, wrong
from headrace.config.cors import Cors
from headrace.config.model import A_MODEL_NAME, MODEL_NAME, model_config
from headrace.config.observing import AccessLog, Audit, Tracing
from headrace.config.reading import Table, convert, parse, read_table
from headrace.config.tls import Tls
from headrace.errors import ConfigError

_MOST_PORTS = 65535
_MOST_CONNECTIONS = 2**20
_MOST_MESSAGE_BYTES = 2**31 - 1  # what protobuf can hold
_MOST_BYTES = 2**48  # more than processors can address
_MOST_WORKERS = 256
_SHORTEST_WORKER_TIMEOUT_SECONDS = 1.0
_MOST_FIRST_ANSWER_SECONDS = 5.0
_SHORTEST_AGE_SECONDS = 1.0
_MOST_JSON_DEPTH = 512  # deeper, and decoders that call themselves give up


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one client, or all together, may take of the server.

    Attributes:
        max_message_bytes: The largest request, decompressed.
        max_inflight_bytes: What all requests that are being received or answered may hold together.
        body_timeout_seconds: How long a request's body may take to arrive.
        max_connections: How many connections may be open, at the most as many as the process's limit of open
            files allows; 0 for as many as that.
        max_json_depth: How deep JSON may nest.
        max_values: How many values (numbers, texts, lists, members, features, inputs) a request may have that
            are decoded one by one; raw tensors are bytes only.
        max_expanded_bytes: What a request may take once that is repeated or spread which came once for many
            rows.
        max_expansion: How many times its size on the wire a compressed message may open to; every one may
            open to 1 MiB.
        max_streams_per_connection: How many requests one HTTP/2 connection may have open at a time.
    """

    max_message_bytes: int = 64 * 1024 * 1024
    max_inflight_bytes: int = 512 * 1024 * 1024
    body_timeout_seconds: float = 30.0
    max_connections: int = 0
    max_json_depth: int = 64
    max_values: int = 1_048_576
    max_expanded_bytes: int = 256 * 1024 * 1024
    max_expansion: int = 16
    max_streams_per_connection: int = 256

    def __post_init__(self) -> None:
        """Check each setting, and that they fit together."""
        whole("limits.max_message_bytes", self.max_message_bytes, least=1, most=_MOST_MESSAGE_BYTES)
        whole("limits.max_inflight_bytes", self.max_inflight_bytes, least=1, most=_MOST_BYTES)
        whole("limits.max_connections", self.max_connections, most=_MOST_CONNECTIONS)
        whole("limits.max_json_depth", self.max_json_depth, least=1, most=_MOST_JSON_DEPTH)
        whole("limits.max_values", self.max_values, least=1, most=_MOST_MESSAGE_BYTES)
        whole("limits.max_expanded_bytes", self.max_expanded_bytes, least=1, most=_MOST_BYTES)
        whole("limits.max_expansion", self.max_expansion, least=1, most=_MOST_MESSAGE_BYTES)
        whole(
            "limits.max_streams_per_connection",
            self.max_streams_per_connection,
            least=1,
            most=_MOST_CONNECTIONS,
        )
        seconds("limits.body_timeout_seconds", self.body_timeout_seconds, above_zero=True, most=DAY)
        if self.max_inflight_bytes < self.max_message_bytes:
            expected = f"at least max_message_bytes = {self.max_message_bytes}"
            raise wrong("limits.max_inflight_bytes", expected, self.max_inflight_bytes)


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's own settings say about one model.

    Attributes:
        path: Its directory, which holds the versions; None for the one of its name in the served directory.
        overrides: Sections of ``headrace.toml`` that win over the ones beside the model.
    """

    path: Path | None = None
    overrides: dict[str, object] = {}


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set for a server.

    Attributes:
        host: The address to listen on.
        http_port: The port for REST; 0 for any free one.
        grpc_port: The port for gRPC; 0 for any free one.
        http_server: What serves REST.
        grpc_server: What serves gRPC.
        poll_seconds: How often the model directories are looked at; 0 for once, at the start.
        load_threads: How many models load at the same time; those that have taken ten seconds do not count.
        allow_code: Whether models that are Python code may be loaded.
        isolate: Whether each version has a process of its own, unless its model's settings say otherwise.
        admin: Whether clients may load and unload models (the repository API).
        admin_port: A port for that alone, where it is not allowed at the others; 0 for any free one, None for
            none.
        admin_socket: The same at a path of this machine, for the server's own user only.
        admin_metrics: Whether metrics are given there only.
        handover: The path at which a server hands its ports over to one that starts with the same path; None
            for none.
        handover_seconds: How long the models of one that starts may take to be ready.
        limits: What clients may take.
        tls: What connections are encrypted with, if they are.
        drain_seconds: How long a stopping server may take to answer the requests that it has accepted.
        drain_lead_seconds: How much of that it goes on to accept, while it says in each answer that it goes.
        max_connection_age_seconds: How old a connection may become before its client is told to make a new
            one; 0 for any age.
        log_format: ``text`` for people, ``json`` for machines.
        log_level: The least severe level that is logged.
        tensorflow_metrics: Whether metrics also go by TensorFlow Serving's names.
        triton_metrics: Whether metrics also go by Triton's names.
        load_reports: Whether every answer reports the load of the server, for balancers (ORCA).
        follow_links: Whether links in the model directories may lead out of them.
        trusted_owners: The users, by name or number, whose files may be loaded. None named: models that are
            code from root and the server's own user only, others from anybody.
        signing_keys: A PEM file of public keys: only versions that one of them has signed are served. None
            for any version.
        access: Who may ask what.
        cors: Which web pages may.
        tracing: Which calls become spans of OpenTelemetry, and where those go.
        access_log: Where a line for each call goes.
        audit: Where it is told who changed what is served.
        archive: The settings of the archive that is served, too (``archive.toml``); None for none.
        workers: How many processes serve, on the same ports; ``auto`` for one a processor.
        worker_timeout_seconds: How long a worker may be silent before it is ended and replaced.
        models: What is set per model, by name.
    """

    host: str = "127.0.0.1"
    http_port: int = 8501
    grpc_port: int = 8500
    http_server: Literal["h2corn", "uvicorn"] = "h2corn"
    grpc_server: Literal["h2corn", "grpcio"] = "h2corn"
    poll_seconds: float = 1.0
    load_threads: int = 1
    allow_code: bool = False
    isolate: bool = False
    admin: bool = False
    admin_port: int | None = None
    admin_socket: Path | None = None
    admin_metrics: bool = False
    handover: Path | None = None
    handover_seconds: float = 600.0
    limits: Limits = msgspec.field(default_factory=Limits)
    tls: Tls = msgspec.field(default_factory=Tls)
    drain_seconds: float = 30.0
    drain_lead_seconds: float = 2.0
    max_connection_age_seconds: float = 0.0
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tensorflow_metrics: bool = False
    triton_metrics: bool = False
    load_reports: bool = False
    follow_links: bool = False
    trusted_owners: tuple[str, ...] = ()
    signing_keys: Path | None = None
    access: AccessConfig = msgspec.field(default_factory=AccessConfig)
    cors: Cors = msgspec.field(default_factory=Cors)
    tracing: Tracing = msgspec.field(default_factory=Tracing)
    access_log: AccessLog = msgspec.field(default_factory=AccessLog)
    audit: Audit = msgspec.field(default_factory=Audit)
    archive: Path | None = None
    workers: int | Literal["auto"] = 1
    worker_timeout_seconds: float = 30.0
    models: dict[str, ModelEntry] = {}

    def __post_init__(self) -> None:
        """Check each setting."""
        if not self.host:
            raise wrong("host", "an address or a host name", self.host)
        whole("http_port", self.http_port, most=_MOST_PORTS)
        whole("grpc_port", self.grpc_port, most=_MOST_PORTS)
        if self.admin_port is not None:
            whole("admin_port", self.admin_port, most=_MOST_PORTS)
        one_of("http_server", self.http_server, ("h2corn", "uvicorn"))
        one_of("grpc_server", self.grpc_server, ("h2corn", "grpcio"))
        if self.handover is not None and (self.http_server, self.grpc_server) != ("h2corn", "h2corn"):
            expected = (
                "nothing beside http_server = uvicorn or grpc_server = grpcio: only h2corn hands ports over"
            )
            raise wrong("handover", expected, str(self.handover))
        if self.handover is not None and self.workers != 1 and self.has_admin_ports:
            expected = "no admin_port or admin_socket beside workers > 1: those are not handed over"
            raise wrong("handover", expected, str(self.handover))
        seconds("handover_seconds", self.handover_seconds, most=60 * MINUTE)
        seconds("poll_seconds", self.poll_seconds, most=DAY)
        whole("load_threads", self.load_threads, least=1, most=MOST_THREADS)
        seconds("drain_seconds", self.drain_seconds, most=DAY)
        seconds("drain_lead_seconds", self.drain_lead_seconds, most=DAY)
        if self.workers != "auto":
            whole("workers", self.workers, least=1, most=_MOST_WORKERS)
        seconds("worker_timeout_seconds", self.worker_timeout_seconds, most=DAY)
        if self.worker_timeout_seconds < _SHORTEST_WORKER_TIMEOUT_SECONDS:
            expected = f"at least {_SHORTEST_WORKER_TIMEOUT_SECONDS:g}"
            raise wrong("worker_timeout_seconds", expected, self.worker_timeout_seconds)
        seconds("max_connection_age_seconds", self.max_connection_age_seconds, most=DAY)
        if 0 < self.max_connection_age_seconds < _SHORTEST_AGE_SECONDS:
            expected = f"0, or at least {_SHORTEST_AGE_SECONDS:g}"
            raise wrong("max_connection_age_seconds", expected, self.max_connection_age_seconds)
        one_of("log_format", self.log_format, ("text", "json"))
        one_of("log_level", self.log_level, ("debug", "info", "warning", "error"))

    @property
    def ends_connections(self) -> bool:
        """Whether connections may have to end while the server goes on."""
        return self.tls.wanted or self.max_connection_age_seconds > 0

    @property
    def has_admin_ports(self) -> bool:
        """Whether administration has ports of its own."""
        return self.admin_port is not None or self.admin_socket is not None

    @property
    def lead_seconds(self) -> float:
        """``drain_lead_seconds``, but no more than half of ``drain_seconds``: the rest is for answering."""
        return min(self.drain_lead_seconds, self.drain_seconds / 2)

    @property
    def first_answer_seconds(self) -> float:
        """How long, after the lead, who has connected and got nothing may take to ask; 0 without a lead."""
        return min(self.lead_seconds, _MOST_FIRST_ANSWER_SECONDS, self.drain_seconds / 8)

    @property
    def answer_seconds(self) -> float:
        """What is left of ``drain_seconds`` for what was accepted."""
        return self.drain_seconds - self.lead_seconds - self.first_answer_seconds

    @property
    def looks_again(self) -> bool:
        """Whether there are files that SIGHUP tells the server to read, or open, anew."""
        return self.tls.wanted or self.access_log.path is not None

    def model(self, name: str) -> ModelEntry:
        """What is set here for a model; nothing, if it is not named."""
        return self.models.get(name, _NO_ENTRY)


_NO_ENTRY = ModelEntry()
_FILES = ("archive", "signing_keys", "admin_socket", "handover")


def parse_server_config(text: str, where: str, base: Path) -> ServerConfig:
    """Read a server's settings.

    Args:
        text: The content of the file.
        where: What to call it in errors.
        base: What relative model paths start from.

    Raises:
        ConfigError: It is not TOML, or a setting is unknown or wrong, those under ``[models]`` included.
    """
    return server_config(parse(text, where), where, base)


def server_config(table: Table, where: str, base: Path) -> ServerConfig:
    """Make a server's settings of a table, as ``parse_server_config`` does of TOML.

    Args:
        table: What the file says.
        where: What to call it in errors.
        base: What relative model paths start from.

    Raises:
        ConfigError: A setting is unknown or wrong, those under ``[models]`` included.
    """
    table = dict(table)
    models = table.pop("models", {})
    if not isinstance(models, dict):
        raise ConfigError(f"{where}: {wrong('models', 'one table a model', models)}")
    entries = {name: _entry(name, entry, where, base) for name, entry in models.items()}
    config = convert(table, ServerConfig, where)
    files: dict[str, object] = {
        name: base / file for name in _FILES if (file := getattr(config, name)) is not None
    }
    files |= {name: getattr(config, name).below(base) for name in ("tls", "access", "access_log", "audit")}
    return msgspec.structs.replace(config, models=entries, **files)


def read_server_config(file: Path) -> ServerConfig:
    """Read a server's settings from a file; relative model paths start from where it lies.

    Raises:
        ConfigError: It cannot be read, or a setting is unknown or wrong.
    """
    return server_config(read_table(file, str(file)), str(file), file.absolute().parent)


def with_flags(config: ServerConfig, **flags: object) -> ServerConfig:
    """Let command line flags win over a file.

    Args:
        config: What the file says, or the defaults.
        **flags: Values by the names of ``ServerConfig``, of its tables by such as ``limits.max_values``; None
            for a flag that was not given.

    Raises:
        ConfigError: A value is wrong.
    """
    given: dict[str, object] = {}
    within: dict[str, dict[str, object]] = {}
    for name, value in flags.items():
        table, _, key = name.rpartition(".")
        if value is not None:
            (within.setdefault(table, {}) if table else given)[key] = value
    for table, values in within.items():
        given[table] = msgspec.structs.replace(getattr(config, table), **values)
    return msgspec.structs.replace(config, **given)


def _entry(name: str, table: object, where: str, base: Path) -> ModelEntry:
    key = f"models.{name}"
    if not MODEL_NAME.fullmatch(name):
        raise ConfigError(f"{where}: {wrong(key, A_MODEL_NAME, name)}")
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {wrong(key, 'a table', table)}")
    overrides = dict(table)
    path = overrides.pop("path", None)
    if path is not None and not (isinstance(path, str) and path and "\0" not in path):
        raise ConfigError(f"{where}: {wrong(f'{key}.path', 'a directory', path)}")
    model_config(overrides, f"{where}: [{key}]", name=name)
    return ModelEntry(path=None if path is None else base / path, overrides=overrides)
