"""A server's settings: ``--config FILE`` and options. ``headrace_toml.py`` has those of headrace.toml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

import msgspec

from headrace.base.errors import ConfigError
from headrace.config.access import AccessConfig
from headrace.config.checks import DAY, MINUTE, MOST_THREADS, one_of, seconds, whole, wrong
from headrace.config.headrace_toml import A_MODEL_NAME, MODEL_NAME, model_config
from headrace.config.telemetry import AccessLog, Audit, Tracing
from headrace.config.toml_reader import Table, convert, parse, read_table

HttpServer = Literal["h2corn", "uvicorn"]
GrpcServer = Literal["h2corn", "grpcio"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's certificate, and its requirements for client certificates; the same for REST and gRPC.

    Attributes:
        certificate: A PEM file: the server's own certificate first, then the chain to its authority.
        key: A PEM file: the private key of the server's own certificate, not encrypted.
        client_ca: A PEM file of authorities, one of which must have signed a client's certificate; None if
            clients need no certificate.
    """

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    @property
    def wanted(self) -> bool:
        """Whether connections are encrypted.

        Raises:
            ConfigError: A setting that another one requires is missing.
        """
        if self.certificate is None and self.key is None and self.client_ca is None:
            return False
        for key, other, value in (
            ("tls.certificate", "tls.key" if self.key else "tls.client_ca", self.certificate),
            ("tls.key", "tls.certificate", self.key),
        ):
            if value is None:
                way_out = f"it is required with {other}: set --{key.replace('.', '-')} FILE"
                raise ConfigError(f"{key}: expected a file, got none; {way_out}")
        return True

    def below(self, base: Path) -> Tls:
        """Return a copy with relative files resolved against ``base``."""
        files = {name: getattr(self, name) for name in self.__struct_fields__}
        return Tls(**{name: None if file is None else base / file for name, file in files.items()})


ANY_ORIGIN = "*"
"""The origin that stands for all origins."""

_MOST_ORIGINS = 1000
_FORM = re.compile(r"https?://[a-z0-9._-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")
_USUAL_PORTS = {"http": 80, "https": 443}
_AN_ORIGIN = (
    "origins as browsers send them, such as https://shop.example or http://localhost:3000 (lower case, no "
    f"path, no usual port), or '{ANY_ORIGIN}' alone"
)


class Cors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The web pages that may access the server from a browser.

    Attributes:
        origins: Origins of these pages; ``*`` alone for any origin, empty for none.
    """

    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check each origin: one in a form that browsers do not send would never match."""
        if len(self.origins) > _MOST_ORIGINS:
            raise wrong("cors.origins", f"at most {_MOST_ORIGINS} origins", f"{len(self.origins)}")
        if self.origins == (ANY_ORIGIN,):
            return
        for origin in self.origins:
            if not _is_origin(origin):
                raise wrong("cors.origins", _AN_ORIGIN, origin[:200])


def _is_origin(text: str) -> bool:
    if not _FORM.fullmatch(text):
        return False
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return port is None or (port > 0 and port != _USUAL_PORTS[parts.scheme])


_MOST_PORTS = 65535
_MOST_CONNECTIONS = 2**20
_MOST_MESSAGE_BYTES = 2**31 - 1  # protobuf's limit
_MOST_BYTES = 2**48  # the address space of most 64-bit processors
_MOST_WORKERS = 256
_SHORTEST_WORKER_TIMEOUT_SECONDS = 1.0
_MOST_FIRST_ANSWER_SECONDS = 5.0
_SHORTEST_AGE_SECONDS = 1.0
_MOST_JSON_DEPTH = 512  # recursive decoders fail beyond this


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the resources that one client, or all together, may take.

    Attributes:
        max_message_bytes: Maximum size of a request, decompressed.
        max_inflight_bytes: Maximum memory of all requests being received or answered.
        body_timeout_seconds: Timeout in seconds for receiving a request's body.
        max_connections: Maximum number of open connections, capped by the process's limit on open files; 0
            for that cap alone.
        max_json_depth: Maximum nesting depth of JSON.
        max_values: Maximum number of values (numbers, texts, lists, members, features, inputs) in a request
            that are decoded one by one; raw tensors count as bytes only.
        max_expanded_bytes: Maximum size of a request after data sent once for many rows is repeated or
            spread.
        max_expansion: Maximum ratio of a message's decompressed size to its size on the wire; every message
            may expand to 1 MiB.
        max_streams_per_connection: Maximum number of concurrent requests on one HTTP/2 connection.
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
    """Settings of one model in the server's own file.

    Attributes:
        path: Directory of the model's versions; None for the one of its name in the served directory.
        overrides: Sections that override those of the ``headrace.toml`` beside the model.
    """

    path: Path | None = None
    overrides: dict[str, object] = {}


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a server.

    Attributes:
        host: The address to listen on.
        http_port: The port for REST; 0 for any free one.
        grpc_port: The port for gRPC; 0 for any free one.
        http_server: The HTTP server for REST.
        grpc_server: The server for gRPC.
        poll_seconds: Interval between scans of the model directories in seconds; 0 for one scan at the start.
        load_threads: Number of models that load in parallel; loads that have taken ten seconds do not count.
        allow_code: Whether models that are Python code may be loaded.
        isolate: Whether each version has a process of its own, unless its model's settings say otherwise.
        admin: Whether clients may load and unload models (the repository API).
        admin_port: A port for administration alone, which the other ports then refuse; 0 for any free one,
            None for none.
        admin_socket: As ``admin_port``, but a Unix socket for the server's own user only.
        admin_metrics: Whether metrics are served only on that port or socket.
        handover: The path of the socket at which a server hands its ports over to a successor that is started
            with the same path; None for none.
        handover_seconds: Timeout in seconds for a successor's models to be ready.
        limits: Limits on the resources that clients may take.
        tls: Encryption of connections.
        drain_seconds: Time in seconds that a stopping server may take to answer accepted requests.
        drain_lead_seconds: Part of that time in which it still accepts requests, and announces the shutdown
            in each response.
        max_connection_age_seconds: Age in seconds at which the server asks a client to open a new
            connection; 0 for any age.
        log_format: ``text`` for people, ``json`` for machines.
        log_level: The lowest level that is logged.
        tensorflow_metrics: Whether metrics are also served under TensorFlow Serving's names.
        triton_metrics: Whether metrics are also served under Triton's names.
        load_reports: Whether every response reports the load of the server, for balancers (ORCA).
        follow_links: Whether links inside a version may lead out of its directory.
        trusted_owners: Further users, by name or number, whose files may be loaded, beside root, the server's
            own user and, unless the model is code, the owner of the served directory.
        signing_keys: A PEM file of public keys: only versions signed by one of them are served. None for any
            version.
        access: Access control.
        cors: Access from web pages.
        tracing: Sampling and export of traces.
        access_log: The access log.
        audit: The audit log.
        archive: The ``archive.toml`` of an archive to serve as well; None for none.
        workers: Number of processes that serve on the same ports; ``auto`` for one per processor.
        worker_timeout_seconds: Time in seconds after which an unresponsive worker is ended and replaced.
        models: Settings per model, by name.
    """

    host: str = "127.0.0.1"
    http_port: int = 8501
    grpc_port: int = 8500
    http_server: HttpServer = "h2corn"
    grpc_server: GrpcServer = "h2corn"
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
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
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
        one_of("http_server", self.http_server, get_args(HttpServer))
        one_of("grpc_server", self.grpc_server, get_args(GrpcServer))
        if self.workers != 1 and self.grpc_server == "grpcio":
            expected = "h2corn with workers > 1: grpcio cannot accept on the workers' sockets; or workers = 1"
            raise wrong("grpc_server", expected, self.grpc_server)
        if self.handover is not None and (self.http_server, self.grpc_server) != ("h2corn", "h2corn"):
            expected = (
                "nothing with http_server = uvicorn or grpc_server = grpcio: only h2corn hands ports over"
            )
            raise wrong("handover", expected, str(self.handover))
        if self.handover is not None and self.workers != 1 and self.has_admin_ports:
            expected = "no admin_port or admin_socket with workers > 1: those are not handed over"
            raise wrong("handover", expected, str(self.handover))
        if self.admin_metrics and not self.has_admin_ports:
            expected = "admin_port or admin_socket to be set as well, or metrics are served nowhere"
            raise wrong("admin_metrics", expected, self.admin_metrics)
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
        one_of("log_format", self.log_format, get_args(LogFormat))
        one_of("log_level", self.log_level, get_args(LogLevel))

    @property
    def ends_connections(self) -> bool:
        """Whether connections may be closed while the server keeps running."""
        return self.tls.wanted or self.max_connection_age_seconds > 0

    @property
    def has_admin_ports(self) -> bool:
        """Whether administration has a port or socket of its own."""
        return self.admin_port is not None or self.admin_socket is not None

    @property
    def lead_seconds(self) -> float:
        """``drain_lead_seconds``, at most half of ``drain_seconds``: the rest is for answering."""
        return min(self.drain_lead_seconds, self.drain_seconds / 2)

    @property
    def first_answer_seconds(self) -> float:
        """Seconds after the lead time in which a new connection may send its first request; 0 without one."""
        return min(self.lead_seconds, _MOST_FIRST_ANSWER_SECONDS, self.drain_seconds / 8)

    @property
    def answer_seconds(self) -> float:
        """The rest of ``drain_seconds``, for answering accepted requests."""
        return self.drain_seconds - self.lead_seconds - self.first_answer_seconds

    @property
    def looks_again(self) -> bool:
        """Whether SIGHUP makes the server reread or reopen files."""
        return self.tls.wanted or self.access_log.path is not None

    def model(self, name: str) -> ModelEntry:
        """Return the settings of a model; empty ones if the server's file does not name it."""
        return self.models.get(name, _NO_ENTRY)


_NO_ENTRY = ModelEntry()
_FILES = ("archive", "signing_keys", "admin_socket", "handover")


def parse_server_config(text: str, where: str, base: Path) -> ServerConfig:
    """Parse a server's settings.

    Args:
        text: The file's content.
        where: Name of the file in errors.
        base: Base directory of relative paths.

    Raises:
        ConfigError: The text is not TOML, or a setting is unknown or wrong, also under ``[models]``.
    """
    return server_config(parse(text, where), where, base)


def server_config(table: Table, where: str, base: Path) -> ServerConfig:
    """Convert a table to a server's settings, as ``parse_server_config`` does with TOML.

    Args:
        table: The file's content as a table.
        where: Name of the file in errors.
        base: Base directory of relative paths.

    Raises:
        ConfigError: A setting is unknown or wrong, also under ``[models]``.
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
    """Read a server's settings from a file, whose directory is the base of relative paths.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown or wrong.
    """
    return server_config(read_table(file, str(file)), str(file), file.absolute().parent)


def with_flags(config: ServerConfig, **flags: object) -> ServerConfig:
    """Override settings with command line options.

    Args:
        config: The settings of the file, or the defaults.
        **flags: Values by field of ``ServerConfig``, or by field of its tables such as
            ``limits.max_values``; None for an option that was not given.

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
