"""A model's settings: ``headrace.toml`` beside its versions, or the arguments of an engine in process."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Literal

import msgspec

from headrace.config.checks import DAY, MINUTE, MOST_ROWS, MOST_THREADS, YEAR, one_of, seconds, whole, wrong
from headrace.config.reading import Table, convert, merged, parse
from headrace.disk import read_text
from headrace.errors import ConfigError

MODEL_CONFIG_FILE = "headrace.toml"
"""The settings beside a model's versions."""

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a model may be called; to be matched in full."""

A_MODEL_NAME = "a model's name: a letter or digit, then up to 127 letters, digits, dots, _ and -"
"""The same in words."""

LABEL_NAME = re.compile(r"[A-Za-z0-9_]+")
"""What a label may be called; to be matched in full."""

LARGEST_VERSION = 2**63 - 1
"""The largest number of a version that the protocols can say."""

LARGEST_MODEL_CONFIG_BYTES = 2**19
"""The largest ``headrace.toml`` that is read: the names of 20,000 classes fit.

It is read while all models' directories are looked at, and TOML takes up to 2 s a MiB.
"""

_MOST_COUNTED = 1_000_000

_LEAST_CACHE_BYTES, _MOST_CACHE_BYTES = 2**16, 2**42
_LEAST_ISOLATED_BYTES, _MOST_ISOLATED_BYTES = 2**24, 2**48
_LEAST_SHARED_BYTES = 2**20
_MOST_PROCESSES = 256

Option = str | int | float | bool


class BatchingPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one model's requests are merged.

    Attributes:
        enabled: Whether requests are merged. ``batching = false`` is short for ``enabled = false``: each
            request is one call of the model, and its answer is given whole, not as rows.
        max_batch_rows: The most rows of one call of the model; larger requests are split and joined again.
        max_batch_seconds: How long one call may be predicted to take: batches of a slow model stay below
            ``max_batch_rows`` for it.
        max_wait_seconds: How long the first request of a batch may be held back for more to come; 0 for not
            at all.
        allowed_batch_rows: The only batch sizes that the model shall see, ascending, the last one
            ``max_batch_rows``; smaller batches are padded. Empty for any size.
        instances: The most calls that run side by side; 0 for one a core (of the cgroup's quota), and for one
            where the model is a ``model.py``.
        instance_processes: How many processes each version is loaded in, instead of threads: each computes
            one call at a time. They are isolated as ``isolate`` says. None for no such processes.
        max_queue_rows: How many rows may wait, and the most rows of one request; requests beyond are refused.
        inline_seconds: Batches predicted to take less run in the serving thread; None lets headrace choose.
        threads_per_instance: How many threads one call may use; 0 lets headrace choose.
        pad_variable_length: Whether rows of different shapes share a batch, the shorter filled up with zeros.
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

    def __post_init__(self) -> None:
        """Check each setting, and that they fit together."""
        whole("batching.max_batch_rows", self.max_batch_rows, least=1, most=MOST_ROWS)
        seconds("batching.max_batch_seconds", self.max_batch_seconds, above_zero=True, most=DAY)
        seconds("batching.max_wait_seconds", self.max_wait_seconds, most=MINUTE)
        whole("batching.instances", self.instances, most=MOST_THREADS)
        whole("batching.max_queue_rows", self.max_queue_rows, least=1, most=MOST_ROWS)
        whole("batching.threads_per_instance", self.threads_per_instance, most=MOST_THREADS)
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
    """Which versions of a model are served, and how one takes over from another.

    Attributes:
        policy: ``latest``, the ``count`` highest numbers; ``all``; or ``specific``, those in ``numbers``.
        count: How many versions ``latest`` serves.
        numbers: The versions that ``specific`` serves.
        transition: ``availability`` loads the new version before it unloads the old one; ``resource`` unloads
            first, for models of which only one fits into memory.
        labels: Names that point at versions; a label moves when its version is ready.
        load_attempts: How often loading a version is tried before it stays failed; what the system is short
            of is waited for without end.
        load_retry_seconds: The longest pause between attempts; the first is at most a second, then it
            doubles.
        load_timeout_seconds: How long loading and warming up a version may take together. Then it has failed;
            its thread, which cannot be ended, is left alone, and what it brings is thrown away.
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
            those that are found by their well-known names.
        max_requests: The most requests that are replayed.
        probe: Whether it is checked that rows do not depend on each other: the model is asked some made-up
            requests for it. Not for models with side effects.
        must_answer: Whether a version is refused that fails all generated requests which the version before
            answers.
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
        one_of("runtime.kind", self.kind, ("", "onnx", "sklearn", "python", "ctr", "tensorflow"))


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
        one_of("signature.kind", self.kind, ("predict", "classify", "regress"))
        if self.classes and self.labels:
            raise wrong("signature.labels", "either classes (an output) or labels (names)", "both")


class DefaultPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is answered when the model does not answer in time, or refuses; nothing if neither is given.

    Attributes:
        values: One row's value of each output; a single number or text stands for all elements of a row.
        model: The name of another model that takes the same inputs and gives the same outputs.
        after_seconds: How long a request waits for the model at the most; 0 for its own deadline only.
    """

    values: dict[str, object] = {}
    model: str = ""
    after_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Check that they fit together."""
        seconds("default.after_seconds", self.after_seconds, most=DAY)
        if self.values and self.model:
            raise wrong("default.model", "either values or a model's name", "both")
        if self.model and not MODEL_NAME.fullmatch(self.model):
            raise wrong("default.model", A_MODEL_NAME, self.model)
        if self.after_seconds and not (self.values or self.model):
            raise wrong("default.values", "values, or a model's name, beside after_seconds", "neither")


class InputSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input of the model that comes from the archive, by a key in the request.

    Attributes:
        space: The space or table of ``archive.toml``.
        key: The request's input that holds the key; it may be an input of the model as well.
        column: Which column of a table; "" for a space of vectors.
        key_dtype: What the key is: ``text``, where the empty text is no key; or ``int64``, where -1 is none.
        max_age_seconds: How long ago a value may have been written; an older one counts as missing. 0 for any
            age.
        default: What stands for a missing value: a text, or a number for all elements of a vector; the
            archive's own (the out-of-vocabulary vector, the column's default) if left out.
        answer: Whether answers say when the value was written, and in which version of the space it was: as
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
    """How much of what a version has answered is kept, to be answered again without the model.

    Attributes:
        size_bytes: What the answers may take, with what was asked; 0 for no cache.
        seconds: For how long an answer may be repeated; 0 for as long as its version is loaded.
    """

    size_bytes: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Check that they fit together."""
        if self.size_bytes != 0:
            whole("cache.size_bytes", self.size_bytes, least=_LEAST_CACHE_BYTES, most=_MOST_CACHE_BYTES)
        seconds("cache.seconds", self.seconds, most=YEAR)
        if self.seconds and not self.size_bytes:
            raise wrong("cache.size_bytes", "bytes beside seconds", self.size_bytes)


class ObjectivePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latency objective: which share of requests is to be answered how fast.

    Attributes:
        latency_seconds: Within which time of its arrival a request is to be answered; 0 for no objective.
        target: Which share of requests is to be answered within it; the rest is the error budget.
        window_seconds: Over how long the server itself says what is left of the error budget.
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
    """What each process of an isolated model may take.

    Attributes:
        timeout_seconds: How long one batch may take; then the process is ended, and another one started.
        memory_bytes: What the process may hold of memory of its own. Above it another process takes its
            place; at one and a half times as much it is ended at once. 0 for any.
        shared_bytes: How much memory one batch may take on its way to the process and back.
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
    """Everything that can be set for one model: one field a section of ``headrace.toml``.

    Attributes:
        versions: Which versions are served.
        batching: How requests are merged.
        warm_up: What a version answers before it is ready.
        runtime: What loads it.
        signature: What Classify and Regress make of it.
        default: What is answered in its place when it does not answer in time.
        inputs: Which of its inputs come from the archive, by their names.
        cache: Which answers are repeated.
        objective: How fast requests are to be answered.
        isolate: Whether each version has a process of its own; None for what the server's settings say.
        isolation: What each such process may take.
    """

    versions: VersionPolicy = msgspec.field(default_factory=VersionPolicy)
    batching: BatchingPolicy = msgspec.field(default_factory=BatchingPolicy)
    warm_up: WarmUpPolicy = msgspec.field(default_factory=WarmUpPolicy)
    runtime: RuntimeConfig = msgspec.field(default_factory=RuntimeConfig)
    signature: SignatureConfig = msgspec.field(default_factory=SignatureConfig)
    default: DefaultPolicy = msgspec.field(default_factory=DefaultPolicy)
    inputs: dict[str, InputSource] = {}
    cache: CachePolicy = msgspec.field(default_factory=CachePolicy)
    objective: ObjectivePolicy = msgspec.field(default_factory=ObjectivePolicy)
    isolate: bool | None = None
    isolation: IsolationPolicy = msgspec.field(default_factory=IsolationPolicy)

    def __post_init__(self) -> None:
        """Check that they fit together."""
        self._check_whole_answers()
        if self.inputs and self.cache.size_bytes and not self.cache.seconds:
            expected = (
                "more than 0 beside [inputs]: what comes from the archive changes while a version is loaded"
            )
            raise wrong("cache.seconds", expected, self.cache.seconds)
        if self.isolate is False and self.batching.instance_processes is not None:
            raise wrong("isolate", "true, or nothing, beside batching.instance_processes", self.isolate)

    def _check_whole_answers(self) -> None:
        """What repeats, replaces or looks up single rows needs answers in rows."""
        needs_rows = {
            "cache": self.cache.size_bytes > 0,
            "default": bool(self.default.values or self.default.model),
            "inputs": bool(self.inputs),
        }
        found = [section for section, is_set in needs_rows.items() if is_set]
        if found and not self.batching.enabled:
            raise wrong("batching.enabled", f"true beside [{found[0]}], which is by rows", False)


def config_of_objects(batching: BatchingPolicy) -> ModelConfig:
    """Make the settings of models that are given as objects in process.

    Args:
        batching: How their requests are merged.

    Raises:
        ConfigError: It asks for processes, into which no object can be loaded.
    """
    if batching.instance_processes is not None:
        expected = "nothing for objects, which stay in this process: leave it out, or load a directory"
        raise wrong("batching.instance_processes", expected, batching.instance_processes)
    return ModelConfig(batching=batching)


def read_model_config(model_directory: Path) -> str:
    """The content of a model's ``headrace.toml``; "" without one.

    Raises:
        OSError: There is one, but it cannot be read, is no ordinary file, too large, or not UTF-8.
    """
    try:
        return read_text(model_directory / MODEL_CONFIG_FILE, LARGEST_MODEL_CONFIG_BYTES)
    except FileNotFoundError:
        return ""


def parse_model_config(
    text: str, overrides: Table | None = None, where: str = MODEL_CONFIG_FILE, *, name: str = ""
) -> ModelConfig:
    """Read a ``headrace.toml``.

    Args:
        text: Its content; empty for a model without one.
        overrides: Sections that win over it.
        where: What to call it in errors.
        name: What the model is called; "" where that is not known.

    Raises:
        ConfigError: It is not TOML, or a setting is unknown or wrong.
    """
    own, over = _with_tables(parse(text, where)), _with_tables(overrides or {})
    return model_config(merged(own, over), where, name=name)


def _with_tables(table: Table) -> Table:
    """Spell ``batching = false`` out."""
    batching = table.get("batching")
    return {**table, "batching": {"enabled": batching}} if isinstance(batching, bool) else table


def model_config(table: Table, where: str, *, name: str = "") -> ModelConfig:
    """Make a model's settings of a table, as ``parse_model_config`` does of TOML.

    Raises:
        ConfigError: A setting is unknown or wrong.
    """
    config = convert(_with_tables(table), ModelConfig, where)
    if name and config.default.model == name:
        raise ConfigError(f"{where}: {wrong('default.model', 'the name of another model', name)}")
    return config
