"""Settings: ``headrace.toml`` beside a model, and the server's ``--config FILE``.

Every setting is a field here, with its default and its check; ``docs/configuration.md`` is the same list in
prose. The same ``BatchingPolicy`` serves models in process and over the network.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_type_hints

import msgspec

from headrace.errors import ConfigError

MODEL_CONFIG_FILE = "headrace.toml"
"""The settings beside a model's versions."""

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a model may be called; to be matched in full."""

LABEL_NAME = re.compile(r"[A-Za-z0-9_]+")
"""What a label may be called; to be matched in full."""

Table = Mapping[str, object]
Option = str | int | float | bool
_StructT = TypeVar("_StructT", bound=msgspec.Struct)
_MOST_PORTS = 65535


class BatchingPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one model's requests are merged.

    Attributes:
        max_batch_rows: The most rows of one call of the model; larger requests are split and joined again.
        max_batch_seconds: How long one call may be predicted to take: batches of a slow model stay below
            ``max_batch_rows`` for it.
        max_wait_seconds: How long the first request of a batch may be held back for more to come; 0 for not
            at all.
        allowed_batch_rows: The only batch sizes that the model shall see, ascending, the last one
            ``max_batch_rows``; smaller batches are padded. Empty for any size.
        instances: How many calls run side by side; 0 for one a core (of the cgroup's quota).
        max_queue_rows: How many rows may wait; requests beyond are refused.
        inline_seconds: Batches predicted to take less run in the serving thread; None lets headrace choose.
        threads_per_instance: How many threads one call may use; 0 lets headrace choose.
        pad_variable_length: Whether rows of different shapes share a batch, the shorter filled up with zeros.
    """

    max_batch_rows: int = 256
    max_batch_seconds: float = 0.05
    max_wait_seconds: float = 0.0
    allowed_batch_rows: tuple[int, ...] = ()
    instances: int = 0
    max_queue_rows: int = 16384
    inline_seconds: float | None = None
    threads_per_instance: int = 0
    pad_variable_length: bool = False

    def __post_init__(self) -> None:
        """Check each setting, and that they fit together."""
        _whole("batching.max_batch_rows", self.max_batch_rows, least=1)
        _seconds("batching.max_batch_seconds", self.max_batch_seconds, above_zero=True)
        _seconds("batching.max_wait_seconds", self.max_wait_seconds)
        _whole("batching.instances", self.instances)
        _whole("batching.max_queue_rows", self.max_queue_rows, least=1)
        _whole("batching.threads_per_instance", self.threads_per_instance)
        if self.inline_seconds is not None:
            _seconds("batching.inline_seconds", self.inline_seconds)
        self._check_allowed_rows()

    def _check_allowed_rows(self) -> None:
        allowed = self.allowed_batch_rows
        for rows in allowed:
            _whole("batching.allowed_batch_rows", rows, least=1)
        ascending = all(low < high for low, high in itertools.pairwise(allowed))
        if allowed and not (ascending and allowed[-1] == self.max_batch_rows):
            raise _wrong(
                "batching.allowed_batch_rows",
                f"ascending sizes, the last one max_batch_rows = {self.max_batch_rows}",
                list(allowed),
            )


class VersionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which versions of a model are served, and how one takes over from another.

    Attributes:
        policy: ``latest``, the ``count`` highest numbers; ``all``; or ``specific``, those in ``numbers``.
        count: How many versions ``latest`` serves.
        numbers: The versions that ``specific`` serves.
        transition: ``availability`` loads the new version before it unloads the old one; ``resource`` unloads
            first, for models of which only one fits into memory.
        labels: Names that point at versions; a label moves when its version is ready.
        load_attempts: How often loading a version is tried before it stays failed.
        load_retry_seconds: The longest pause between attempts; the first is at most a second, then it
            doubles.
        max_age_seconds: The staleness objective: how long ago the version that is served may have been
            published before the metric ``headrace_model_stale`` says 1; 0 for no objective.
    """

    policy: Literal["latest", "all", "specific"] = "latest"
    count: int = 1
    numbers: tuple[int, ...] = ()
    transition: Literal["availability", "resource"] = "availability"
    labels: dict[str, int] = {}
    load_attempts: int = 5
    load_retry_seconds: float = 60.0
    max_age_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Check each setting, and that they fit together."""
        _one_of("versions.policy", self.policy, ("latest", "all", "specific"))
        _one_of("versions.transition", self.transition, ("availability", "resource"))
        _whole("versions.count", self.count, least=1)
        _whole("versions.load_attempts", self.load_attempts, least=1)
        _seconds("versions.load_retry_seconds", self.load_retry_seconds)
        _seconds("versions.max_age_seconds", self.max_age_seconds)
        for number in self.numbers:
            _whole("versions.numbers", number)
        if (self.policy == "specific") != bool(self.numbers):
            raise _wrong("versions.numbers", 'numbers exactly when policy = "specific"', list(self.numbers))
        for label, number in self.labels.items():
            if not LABEL_NAME.fullmatch(label):
                raise _wrong("versions.labels", "names of letters, digits and _", label)
            _whole(f"versions.labels.{label}", number)


class WarmUpPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requests that a version answers before it is ready.

    Attributes:
        enabled: Whether versions are warmed up at all.
        requests: Files of recorded requests, relative to the version directory or else the model's; empty for
            those that are found by their well-known names.
        max_requests: The most requests that are replayed.
    """

    enabled: bool = True
    requests: tuple[str, ...] = ()
    max_requests: int = 1000

    def __post_init__(self) -> None:
        """Check each setting."""
        _whole("warm_up.max_requests", self.max_requests)
        for name in self.requests:
            if not name or Path(name).is_absolute() or ".." in Path(name).parts:
                raise _wrong("warm_up.requests", "file names below the version or model directory", name)


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What loads a model's versions.

    Attributes:
        kind: ``onnx``, ``sklearn``, ``python``, ``ctr`` or ``tensorflow``; empty to find it from the files.
        trusted: Type names that a skops file may hold beyond what skops trusts by itself.
        options: Settings of that runtime, listed in docs/runtimes.md.
    """

    kind: Literal["", "onnx", "sklearn", "python", "ctr", "tensorflow"] = ""
    trusted: tuple[str, ...] = ()
    options: dict[str, Option] = {}

    def __post_init__(self) -> None:
        """Check the kind; the options are the runtime's to check."""
        _one_of("runtime.kind", self.kind, ("", "onnx", "sklearn", "python", "ctr", "tensorflow"))


class SignatureConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What TensorFlow Serving's Classify and Regress make of a model's outputs.

    Attributes:
        kind: Which of them the model answers, besides Predict.
        scores: The output that holds the scores, or the regression's value; empty for the only one that can.
        classes: The output that holds the classes' names; empty for none.
        labels: The classes' names, where no output holds them, in the order of the scores.
    """

    kind: Literal["predict", "classify", "regress"] = "predict"
    scores: str = ""
    classes: str = ""
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check each setting, and that they fit together."""
        _one_of("signature.kind", self.kind, ("predict", "classify", "regress"))
        if self.classes and self.labels:
            raise _wrong("signature.labels", "either classes (an output) or labels (names)", "both")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set for one model: one field a section of ``headrace.toml``.

    Attributes:
        versions: Which versions are served.
        batching: How requests are merged.
        warm_up: What a version answers before it is ready.
        runtime: What loads it.
        signature: What Classify and Regress make of it.
    """

    versions: VersionPolicy = msgspec.field(default_factory=VersionPolicy)
    batching: BatchingPolicy = msgspec.field(default_factory=BatchingPolicy)
    warm_up: WarmUpPolicy = msgspec.field(default_factory=WarmUpPolicy)
    runtime: RuntimeConfig = msgspec.field(default_factory=RuntimeConfig)
    signature: SignatureConfig = msgspec.field(default_factory=SignatureConfig)


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one client, or all together, may take of the server.

    Attributes:
        max_message_bytes: The largest request, decompressed.
        max_inflight_bytes: What all requests that are being received or answered may hold together.
        body_timeout_seconds: How long a request's body may take to arrive.
        max_connections: How many connections may be open; 0 derives it from the process's file limit.
        max_json_depth: How deep JSON may nest.
    """

    max_message_bytes: int = 64 * 1024 * 1024
    max_inflight_bytes: int = 512 * 1024 * 1024
    body_timeout_seconds: float = 30.0
    max_connections: int = 0
    max_json_depth: int = 64

    def __post_init__(self) -> None:
        """Check each setting, and that they fit together."""
        _whole("limits.max_message_bytes", self.max_message_bytes, least=1)
        _whole("limits.max_connections", self.max_connections)
        _whole("limits.max_json_depth", self.max_json_depth, least=1)
        _seconds("limits.body_timeout_seconds", self.body_timeout_seconds, above_zero=True)
        if self.max_inflight_bytes < self.max_message_bytes:
            expected = f"at least max_message_bytes = {self.max_message_bytes}"
            raise _wrong("limits.max_inflight_bytes", expected, self.max_inflight_bytes)


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
        load_threads: How many models load at the same time.
        allow_code: Whether models that are Python code may be loaded.
        admin: Whether clients may load and unload models (the repository API).
        limits: What clients may take.
        drain_seconds: How long a stopping server waits for the requests that it has accepted.
        log_format: ``text`` for people, ``json`` for machines.
        log_level: The least severe level that is logged.
        tensorflow_metrics: Whether metrics also go by TensorFlow Serving's names.
        triton_metrics: Whether metrics also go by Triton's names.
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
    admin: bool = False
    limits: Limits = msgspec.field(default_factory=Limits)
    drain_seconds: float = 30.0
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tensorflow_metrics: bool = False
    triton_metrics: bool = False
    models: dict[str, ModelEntry] = {}

    def __post_init__(self) -> None:
        """Check each setting."""
        if not self.host:
            raise _wrong("host", "an address or a host name", self.host)
        _whole("http_port", self.http_port, most=_MOST_PORTS)
        _whole("grpc_port", self.grpc_port, most=_MOST_PORTS)
        _one_of("http_server", self.http_server, ("h2corn", "uvicorn"))
        _one_of("grpc_server", self.grpc_server, ("h2corn", "grpcio"))
        _seconds("poll_seconds", self.poll_seconds)
        _whole("load_threads", self.load_threads, least=1)
        _seconds("drain_seconds", self.drain_seconds)
        _one_of("log_format", self.log_format, ("text", "json"))
        _one_of("log_level", self.log_level, ("debug", "info", "warning", "error"))

    def model(self, name: str) -> ModelEntry:
        """What is set here for a model; nothing, if it is not named."""
        return self.models.get(name, _NO_ENTRY)


_NO_ENTRY = ModelEntry()


def parse_model_config(
    text: str, overrides: Table | None = None, where: str = MODEL_CONFIG_FILE
) -> ModelConfig:
    """Read a ``headrace.toml``.

    Args:
        text: Its content; empty for a model without one.
        overrides: Sections that win over it.
        where: What to call it in errors.

    Raises:
        ConfigError: It is not TOML, or a setting is unknown or wrong.
    """
    return _convert(_merged(_parse(text, where), overrides or {}), ModelConfig, where)


def parse_server_config(text: str, where: str, base: Path) -> ServerConfig:
    """Read a server's settings.

    Args:
        text: The content of the file.
        where: What to call it in errors.
        base: What relative model paths start from.

    Raises:
        ConfigError: It is not TOML, or a setting is unknown or wrong, those under ``[models]`` included.
    """
    table = _parse(text, where)
    models = table.pop("models", {})
    if not isinstance(models, dict):
        raise ConfigError(f"{where}: {_wrong('models', 'one table a model', models)}")
    entries = {name: _entry(name, entry, where, base) for name, entry in models.items()}
    return msgspec.structs.replace(_convert(table, ServerConfig, where), models=entries)


def read_server_config(file: Path) -> ServerConfig:
    """Read a server's settings from a file; relative model paths start from where it lies.

    Raises:
        ConfigError: It cannot be read, or a setting is unknown or wrong.
    """
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    return parse_server_config(text, str(file), file.absolute().parent)


def with_flags(config: ServerConfig, **flags: object) -> ServerConfig:
    """Let command line flags win over a file.

    Args:
        config: What the file says, or the defaults.
        **flags: Values by the names of ``ServerConfig``; None for a flag that was not given.

    Raises:
        ConfigError: A value is wrong.
    """
    return msgspec.structs.replace(
        config, **{name: value for name, value in flags.items() if value is not None}
    )


def _entry(name: str, table: object, where: str, base: Path) -> ModelEntry:
    key = f"models.{name}"
    if not MODEL_NAME.fullmatch(name):
        expected = "a model's name: a letter or digit, then up to 127 letters, digits, dots, _ and -"
        raise ConfigError(f"{where}: {_wrong(key, expected, name)}")
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {_wrong(key, 'a table', table)}")
    overrides = dict(table)
    path = overrides.pop("path", None)
    if path is not None and not (isinstance(path, str) and path):
        raise ConfigError(f"{where}: {_wrong(f'{key}.path', 'a directory', path)}")
    _convert(overrides, ModelConfig, f"{where}: [{key}]")
    return ModelEntry(path=None if path is None else base / path, overrides=overrides)


def _parse(text: str, where: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from error


def _merged(below: Table, above: Table) -> dict[str, object]:
    """Lay one table over another; where both hold tables, key by key."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            merged[key] = _merged(under, value)
        else:
            merged[key] = value
    return merged


_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_LITERAL = re.compile(r"Invalid enum value (.*)")


def _convert(table: Table, kind: type[_StructT], where: str) -> _StructT:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        said, _, at = str(error).partition(" - at `$")
        raise ConfigError(f"{where}: {_explain(said, at.rstrip('`').lstrip('.'), kind)}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error


def _explain(said: str, path: str, kind: type[msgspec.Struct]) -> str:
    """Turn msgspec's words into which key, what was expected and what came."""
    if unknown := _UNKNOWN.fullmatch(said):
        key = unknown[1]
        known = list(_fields(_at(kind, path)))
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        return f"{f'{path}.' if path else ''}{key}: unknown setting; {hint}"
    if literal := _LITERAL.fullmatch(said):
        allowed = ", ".join(repr(value) for value in get_args(_at(kind, path)))
        return f"{path}: expected one of {allowed}, got {literal[1]}"
    said = said.replace("`object`", "a table").replace("`array`", "a list")
    return f"{path}: {said[:1].lower()}{said[1:]}" if path else said


def _at(kind: object, path: str) -> object:
    """The type of the setting at a path such as ``batching.instances``."""
    for name in filter(None, re.sub(r"\[.*?\]", "", path).split(".")):
        kind = _fields(kind).get(name)
    return kind


def _fields(kind: object) -> dict[str, object]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return {name: hints[name] for name in kind.__struct_fields__}
    return {}


def _wrong(key: str, expected: str, got: object) -> ConfigError:
    return ConfigError(f"{key}: expected {expected}, got {got!r}")


def _whole(key: str, value: object, *, least: int = 0, most: int | None = None) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not fits or (most is not None and isinstance(value, int) and value > most):
        expected = (
            f"a whole number, {least} or more" if most is None else f"a whole number, {least} to {most}"
        )
        raise _wrong(key, expected, value)


def _seconds(key: str, value: object, *, above_zero: bool = False) -> None:
    fits = (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )
    if not fits or (above_zero and value == 0):
        raise _wrong(key, f"seconds, {'more than 0' if above_zero else '0 or more'}", value)


def _one_of(key: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _wrong(key, f"one of {', '.join(map(repr, allowed))}", value)
