"""A model's settings: ``headrace.toml`` beside its versions, or the arguments of an engine in process."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Literal, get_args

import msgspec

from headrace.base.errors import ConfigError
from headrace.base.files import read_text
from headrace.config.checks import DAY, MINUTE, MOST_ROWS, MOST_THREADS, YEAR, one_of, seconds, whole, wrong
from headrace.config.image_recipe import ImageConfig
from headrace.config.signature import SignatureConfig
from headrace.config.toml_reader import Table, convert, merged, parse

MODEL_CONFIG_FILE = "headrace.toml"
"""Name of the settings file beside a model's versions."""

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Pattern of a model's name, for a full match."""

A_MODEL_NAME = "a model's name: a letter or digit, then up to 127 letters, digits, dots, _ and -"
"""The pattern in words."""

LABEL_NAME = re.compile(r"[A-Za-z0-9_]+")
"""Pattern of a label, for a full match."""

LARGEST_VERSION = 2**63 - 1
"""The largest version number that the protocols can express."""

LARGEST_MODEL_CONFIG_BYTES = 2**19
"""Maximum size of a ``headrace.toml`` in bytes: enough for the names of 20,000 classes.

It is read during the scan of all models' directories, and parsing TOML takes up to 2 s per MiB.
"""

_MOST_COUNTED = 1_000_000

_LEAST_CACHE_BYTES, _MOST_CACHE_BYTES = 2**16, 2**42
_LEAST_ISOLATED_BYTES, _MOST_ISOLATED_BYTES = 2**24, 2**48
_LEAST_SHARED_BYTES = 2**20
_MOST_PROCESSES = 256

Option = str | int | float | bool


class BatchingPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one model's requests are merged into batches.

    Attributes:
        enabled: Whether requests are merged. ``batching = false`` is short for ``enabled = false``: each
            request is one call of the model, and its answer is returned whole, not as rows.
        max_batch_rows: Maximum rows in one call of the model; larger requests are split and joined again.
        max_batch_seconds: Maximum predicted duration of one call; it keeps the batches of a slow model below
            ``max_batch_rows``.
        max_wait_seconds: Longest delay of a batch's first request to wait for more; 0 for no delay.
        allowed_batch_rows: The only batch sizes that the model receives, ascending, the last one
            ``max_batch_rows``; smaller batches are padded. Empty for any size.
        instances: Maximum number of parallel calls; 0 for one per core (of the cgroup's quota), and for one
            if the model is a ``model.py``.
        instance_processes: Number of processes that each version is loaded in, instead of threads. Each
            process computes one call at a time, isolated as with ``isolate``. None for no such processes.
        max_queue_rows: Maximum number of queued rows, and of rows in one request; others are refused.
        inline_seconds: Batches predicted to take less run in the serving thread; None lets headrace choose.
        threads_per_instance: Number of threads that one call may use; 0 lets headrace choose.
        pad_variable_length: Whether rows of different shapes share a batch, the shorter padded with zeros.
        max_streams: Maximum number of open streams of each version of a model that answers in parts; others
            are refused.
    """

    enabled: bool = True
    max_batch_rows: int = 256
    max_batch_seconds: float = 0.05
    max_wait_seconds: float = 0.0
    allowed_batch_rows: tuple[int, ...] = ()
    instances: int = 0
    instance_processes: int | None = None
    max_queue_rows: int = 16384
    inline_seconds: float | None = None
    threads_per_instance: int = 0
    pad_variable_length: bool = False
    max_streams: int = 64

    def __post_init__(self) -> None:
        """Check each setting, and that they fit together."""
        whole("batching.max_batch_rows", self.max_batch_rows, least=1, most=MOST_ROWS)
        seconds("batching.max_batch_seconds", self.max_batch_seconds, above_zero=True, most=DAY)
        seconds("batching.max_wait_seconds", self.max_wait_seconds, most=MINUTE)
        whole("batching.instances", self.instances, most=MOST_THREADS)
        whole("batching.max_queue_rows", self.max_queue_rows, least=1, most=MOST_ROWS)
        whole("batching.threads_per_instance", self.threads_per_instance, most=MOST_THREADS)
        whole("batching.max_streams", self.max_streams, least=1, most=MOST_ROWS)
        if self.inline_seconds is not None:
            seconds("batching.inline_seconds", self.inline_seconds, most=DAY)
        self._check_processes()
        self._check_allowed_rows()

    def _check_processes(self) -> None:
        count = self.instance_processes
        if count is None:
            return
        key = "batching.instance_processes"
        if isinstance(count, bool) or not 1 <= count <= _MOST_PROCESSES:
            expected = f"a whole number from 1 to {_MOST_PROCESSES}; leave it out for instances in threads"
            raise wrong(key, expected, count)
        if self.instances:
            expected = f"either processes or threads: leave it out, or instances = {self.instances}"
            raise wrong(key, expected, count)

    def _check_allowed_rows(self) -> None:
        allowed = self.allowed_batch_rows
        for rows in allowed:
            whole("batching.allowed_batch_rows", rows, least=1, most=MOST_ROWS)
        ascending = all(low < high for low, high in itertools.pairwise(allowed))
        if allowed and not (ascending and allowed[-1] == self.max_batch_rows):
            raise wrong(
                "batching.allowed_batch_rows",
                f"ascending sizes, the last one max_batch_rows = {self.max_batch_rows}",
                list(allowed),
            )


class VersionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The versions of a model that are served, and the transition between them.

    Attributes:
        policy: ``latest``, the ``count`` highest numbers; ``all``; or ``specific``, those in ``numbers``.
        count: Number of versions that ``latest`` serves.
        numbers: The versions that ``specific`` serves.
        transition: ``availability`` loads the new version before it unloads the old one; ``resource`` unloads
            first, for models of which only one version fits into memory.
        labels: Names that point at versions; a label moves when its version is ready.
        load_attempts: Number of attempts to load a version before it stays failed; a shortage of system
            resources is retried without limit.
        load_retry_seconds: Longest pause between attempts in seconds; the first is at most a second, and each
            later one is twice as long.
        load_timeout_seconds: Timeout in seconds for loading and warming up a version together. After it, the
            loading thread is abandoned, because it cannot be stopped, and its result is discarded.
        max_age_seconds: The staleness objective: maximum time in seconds since the served version's
            publication, above which the metric ``headrace_model_stale`` is 1; 0 for no objective.
    """

    policy: Literal["latest", "all", "specific"] = "latest"
    count: int = 1
    numbers: tuple[int, ...] = ()
    transition: Literal["availability", "resource"] = "availability"
    labels: dict[str, int] = {}
    load_attempts: int = 5
    load_retry_seconds: float = 60.0
    load_timeout_seconds: float = 300.0
    max_age_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Check each setting, and that they fit together."""
        one_of("versions.policy", self.policy, ("latest", "all", "specific"))
        one_of("versions.transition", self.transition, ("availability", "resource"))
        whole("versions.count", self.count, least=1, most=_MOST_COUNTED)
        whole("versions.load_attempts", self.load_attempts, least=1, most=_MOST_COUNTED)
        seconds("versions.load_retry_seconds", self.load_retry_seconds, most=DAY)
        seconds("versions.load_timeout_seconds", self.load_timeout_seconds, above_zero=True, most=YEAR)
        seconds("versions.max_age_seconds", self.max_age_seconds, most=YEAR)
        for number in self.numbers:
            whole("versions.numbers", number, most=LARGEST_VERSION)
        if (self.policy == "specific") != bool(self.numbers):
            raise wrong("versions.numbers", 'numbers exactly when policy = "specific"', list(self.numbers))
        for label, number in self.labels.items():
            if not LABEL_NAME.fullmatch(label):
                raise wrong("versions.labels", "names of letters, digits and _", label)
            whole(f"versions.labels.{label}", number, most=LARGEST_VERSION)


class WarmUpPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requests that a version answers before it is ready.

    Attributes:
        enabled: Whether versions are warmed up at all.
        requests: Files of recorded requests, relative to the version directory or else the model's; empty for
            the well-known name.
        max_requests: Maximum number of requests that are replayed.
        probe: Whether to check, with generated requests, that rows do not depend on each other. Switch it off
            for models with side effects.
        must_answer: Whether to refuse a version that fails all generated requests, if the version that is
            being served answers them.
    """

    enabled: bool = True
    requests: tuple[str, ...] = ()
    max_requests: int = 1000
    probe: bool = True
    must_answer: bool = True

    def __post_init__(self) -> None:
        """Check each setting."""
        whole("warm_up.max_requests", self.max_requests, most=_MOST_COUNTED)
        for name in self.requests:
            if not name or Path(name).is_absolute() or ".." in Path(name).parts:
                raise wrong("warm_up.requests", "file names below the version or model directory", name)


RuntimeKind = Literal[
    "",
    "onnx",
    "sklearn",
    "lightgbm",
    "xgboost",
    "catboost",
    "tensorflow",
    "keras",
    "litert",
    "vw",
    "torch",
    "ctr",
    "python",
]


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The runtime that loads a model's versions.

    Attributes:
        kind: Name of the runtime; empty to detect it from the files.
        trusted: Type names that a skops file may contain beyond those that skops trusts by itself.
        options: Settings of that runtime, listed in docs/runtimes.md.
    """

    kind: RuntimeKind = ""
    trusted: tuple[str, ...] = ()
    options: dict[str, Option] = {}

    def __post_init__(self) -> None:
        """Check the kind; the runtime checks the options."""
        one_of("runtime.kind", self.kind, get_args(RuntimeKind))


class DefaultPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer given if the model refuses or is late; none unless ``values`` or ``model`` is set.

    Attributes:
        values: One row's value of each output; a single number or text stands for all elements of a row.
        model: The name of another model with the same inputs and outputs.
        after_seconds: Longest wait for the model in seconds; 0 for the request's own deadline only.
    """

    values: dict[str, object] = {}
    model: str = ""
    after_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Check that the settings fit together."""
        seconds("default.after_seconds", self.after_seconds, most=DAY)
        if self.values and self.model:
            raise wrong("default.model", "either values or a model's name", "both")
        if self.model and not MODEL_NAME.fullmatch(self.model):
            raise wrong("default.model", A_MODEL_NAME, self.model)
        if self.after_seconds and not (self.values or self.model):
            raise wrong("default.values", "values, or a model's name, with after_seconds", "neither")


class InputSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input of the model that is looked up in the archive, by a key in the request.

    Attributes:
        space: The space or table of ``archive.toml``.
        key: The request's input that contains the key; it may also be an input of the model.
        column: The column of a table; "" for a space of vectors.
        key_dtype: Type of the key: ``text``, where the empty text is no key; or ``int64``, where -1 is none.
        max_age_seconds: Maximum age of a value in seconds; an older one counts as missing. 0 for any age.
        default: Replacement for a missing value: a text, or a number for all elements of a vector; if None,
            the archive's own (the out-of-vocabulary vector, or the column's default).
        answer: Whether answers report when the value was written, and in which version of the space: as
            outputs ``INPUT.written`` and ``INPUT.version``.
    """

    space: str
    key: str
    column: str = ""
    key_dtype: Literal["text", "int64"] = "text"
    max_age_seconds: float = 0.0
    default: int | float | str | None = None
    answer: bool = False

    def __post_init__(self) -> None:
        """Check each setting."""
        one_of("key_dtype", self.key_dtype, ("text", "int64"))
        seconds("max_age_seconds", self.max_age_seconds, most=100 * YEAR)
        if not self.space:
            raise wrong("space", "a space or a table of archive.toml", self.space)
        if not self.key:
            raise wrong("key", "the name of the request's input that holds the key", self.key)


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and lifetime of the cache that answers repeated requests with a version's earlier answers.

    Attributes:
        size_bytes: Maximum size of the answers and their requests; 0 for no cache.
        seconds: Lifetime of an answer in seconds; 0 for as long as its version is loaded.
    """

    size_bytes: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Check that the settings fit together."""
        if self.size_bytes != 0:
            whole("cache.size_bytes", self.size_bytes, least=_LEAST_CACHE_BYTES, most=_MOST_CACHE_BYTES)
        seconds("cache.seconds", self.seconds, most=YEAR)
        if self.seconds and not self.size_bytes:
            raise wrong("cache.size_bytes", "bytes beside seconds", self.size_bytes)


class ObjectivePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latency objective: the share of requests to be answered within a time.

    Attributes:
        latency_seconds: Maximum time from a request's arrival to its answer in seconds; 0 for no objective.
        target: Share of requests to be answered within it; the rest is the error budget.
        window_seconds: Window of the error budget that the server reports, in seconds.
    """

    latency_seconds: float = 0.0
    target: float = 0.999
    window_seconds: float = 3600.0

    def __post_init__(self) -> None:
        """Check each setting."""
        seconds("objective.latency_seconds", self.latency_seconds, most=DAY)
        seconds("objective.window_seconds", self.window_seconds, above_zero=True, most=30 * DAY)
        if not 0.0 < self.target < 1.0:
            raise wrong("objective.target", "a share above 0 and below 1, such as 0.999", self.target)


class IsolationPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of each process of an isolated model.

    Attributes:
        timeout_seconds: Timeout in seconds for one batch, after which the process is ended and restarted.
        memory_bytes: Maximum private memory of the process in bytes. A process above it is replaced; at one
            and a half times as much it is ended at once. 0 for no limit.
        shared_bytes: Maximum memory that one batch takes on its way to the process and back, in bytes.
    """

    timeout_seconds: float = 30.0
    memory_bytes: int = 0
    shared_bytes: int = 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        """Check each setting."""
        seconds("isolation.timeout_seconds", self.timeout_seconds, above_zero=True, most=DAY)
        if self.memory_bytes != 0:
            least, most = _LEAST_ISOLATED_BYTES, _MOST_ISOLATED_BYTES
            whole("isolation.memory_bytes", self.memory_bytes, least=least, most=most)
        most = _MOST_ISOLATED_BYTES
        whole("isolation.shared_bytes", self.shared_bytes, least=_LEAST_SHARED_BYTES, most=most)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one model, one field per section of ``headrace.toml``.

    Attributes:
        versions: The versions that are served.
        batching: How requests are merged.
        warm_up: The requests that a version answers before it is ready.
        runtime: The runtime that loads it.
        signature: The meaning of its outputs.
        image: The images that it takes in place of one of its inputs; None for no images.
        default: The answer given if it does not answer in time.
        inputs: The inputs that are looked up in the archive, by name.
        cache: The cache of its answers.
        objective: Its latency objective.
        isolate: Whether each version has a process of its own; None for the server's setting.
        isolation: Limits of each such process.
    """

    versions: VersionPolicy = msgspec.field(default_factory=VersionPolicy)
    batching: BatchingPolicy = msgspec.field(default_factory=BatchingPolicy)
    warm_up: WarmUpPolicy = msgspec.field(default_factory=WarmUpPolicy)
    runtime: RuntimeConfig = msgspec.field(default_factory=RuntimeConfig)
    signature: SignatureConfig = msgspec.field(default_factory=SignatureConfig)
    image: ImageConfig | None = None
    default: DefaultPolicy = msgspec.field(default_factory=DefaultPolicy)
    inputs: dict[str, InputSource] = {}
    cache: CachePolicy = msgspec.field(default_factory=CachePolicy)
    objective: ObjectivePolicy = msgspec.field(default_factory=ObjectivePolicy)
    isolate: bool | None = None
    isolation: IsolationPolicy = msgspec.field(default_factory=IsolationPolicy)

    def __post_init__(self) -> None:
        """Check that the sections fit together."""
        self._check_whole_answers()
        if self.inputs and self.cache.size_bytes and not self.cache.seconds:
            expected = (
                "more than 0 with [inputs], because values from the archive change while a version is loaded"
            )
            raise wrong("cache.seconds", expected, self.cache.seconds)
        if self.isolate is False and self.batching.instance_processes is not None:
            raise wrong("isolate", "true, or nothing, with batching.instance_processes", self.isolate)
        if self.image is not None and self.batching.pad_variable_length:
            raise wrong("batching.pad_variable_length", "false with [image], whose rows have one shape", True)

    @property
    def changes_inputs(self) -> bool:
        """Whether requests carry other inputs than the model takes: images, or keys of the archive."""
        return bool(self.inputs) or self.image is not None

    def _check_whole_answers(self) -> None:
        """Refuse ``batching.enabled = false`` with sections that work on single rows of answers."""
        needs_rows = {
            "cache": self.cache.size_bytes > 0,
            "default": bool(self.default.values or self.default.model),
            "inputs": bool(self.inputs),
        }
        found = [section for section, is_set in needs_rows.items() if is_set]
        if found and not self.batching.enabled:
            raise wrong("batching.enabled", f"true with [{found[0]}], which works on single rows", False)
        if self.signature.top and not self.batching.enabled:
            raise wrong("batching.enabled", "true with signature.top, which names classes by row", False)


def config_of_objects(batching: BatchingPolicy) -> ModelConfig:
    """Return the settings of models that are passed as objects in process.

    Args:
        batching: Their batching policy.

    Raises:
        ConfigError: The policy asks for processes, which cannot load objects.
    """
    if batching.instance_processes is not None:
        expected = "nothing for objects, which stay in this process: leave it out, or load a directory"
        raise wrong("batching.instance_processes", expected, batching.instance_processes)
    return ModelConfig(batching=batching)


def read_model_config(model_directory: Path) -> str:
    """Return the content of a model's ``headrace.toml``; "" without one.

    Raises:
        OSError: The file exists, but is unreadable, not an ordinary file, too large, or not UTF-8.
    """
    try:
        return read_text(model_directory / MODEL_CONFIG_FILE, LARGEST_MODEL_CONFIG_BYTES)
    except FileNotFoundError:
        return ""


def parse_model_config(
    text: str, overrides: Table | None = None, where: str = MODEL_CONFIG_FILE, *, name: str = ""
) -> ModelConfig:
    """Parse a ``headrace.toml``.

    Args:
        text: The file's content; empty for a model without one.
        overrides: Sections that override the file's.
        where: Name of the file in errors.
        name: The model's name; "" if unknown.

    Raises:
        ConfigError: The text is not TOML, or a setting is unknown or wrong.
    """
    own, over = _with_tables(parse(text, where)), _with_tables(overrides or {})
    return model_config(merged(own, over), where, name=name)


def _with_tables(table: Table) -> Table:
    """Expand the short form ``batching = false``."""
    batching = table.get("batching")
    return {**table, "batching": {"enabled": batching}} if isinstance(batching, bool) else table


def model_config(table: Table, where: str, *, name: str = "") -> ModelConfig:
    """Convert a table to a model's settings, as ``parse_model_config`` does with TOML.

    Raises:
        ConfigError: A setting is unknown or wrong.
    """
    config = convert(_with_tables(table), ModelConfig, where)
    if name and config.default.model == name:
        raise ConfigError(f"{where}: {wrong('default.model', 'the name of another model', name)}")
    return config
