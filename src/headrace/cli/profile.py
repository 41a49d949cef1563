"""``headrace profile DIR/NAME[/N]``: show where a model's time goes, operation by operation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.base.errors import ConfigError, needs_extra
from headrace.base.files import is_visible, saying
from headrace.cli import common, models, number_types
from headrace.config import MODEL_CONFIG_FILE, parse_model_config, read_model_config
from headrace.config.checks import MOST_THREADS
from headrace.profiling.report import Profile, as_json, as_table, write_trace
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.registry import Runtime, find

_MOST_ROWS = 2**20
_MOST_CALLS = 1_000_000

_EXAMPLES = """examples:
  headrace profile models/ctr                          the newest version of a model
  headrace profile models/ctr/7 --rows 300 --calls 50  one version, for 300 rows per call
  headrace profile models/ctr --training               how a click model of these settings learns, too
  headrace profile models/ctr --trace trace.json       for https://ui.perfetto.dev or chrome://tracing
"""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="profile",
            help="show where a model's time goes",
            description="Measure each operation of an ONNX, TensorFlow or click model, with recorded "
            "requests (warm_up.jsonl) or generated ones.",
            examples=_EXAMPLES,
            failure="the model cannot be loaded, or fails",
            run=run,
        ),
    )
    parser.add_argument(
        "model", metavar=models.VERSION, type=Path, help="a model (its newest version), or version N"
    )
    parser.add_argument(
        "--rows",
        type=number_types.whole("rows", least=1, most=_MOST_ROWS),
        default=32,
        metavar="N",
        help="rows per call (default %(default)s)",
    )
    parser.add_argument(
        "--calls",
        type=number_types.whole("calls", least=1, most=_MOST_CALLS),
        default=100,
        metavar="N",
        help="calls to measure (default %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=number_types.whole("threads", least=1, most=MOST_THREADS),
        default=1,
        metavar="N",
        help="threads per call (default %(default)s)",
    )
    parser.add_argument("--training", action="store_true", help="measure learning, too (click models, Keras)")
    parser.add_argument(
        "--keras", metavar="FILE.py:FUNCTION", help="with --training: the function that builds the model"
    )
    parser.add_argument("--schema", metavar="FILE", type=Path, help="with --keras: the stream's schema")
    parser.add_argument(
        "--batch-rows",
        type=number_types.whole("batch-rows", least=1, most=_MOST_ROWS),
        default=1024,
        metavar="N",
        help="with --training: rows per batch (default %(default)s)",
    )
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write each operation of each call")


def run(options: argparse.Namespace) -> int:
    """Profile the model, and print the results."""
    if (options.keras or options.schema) and not options.training:
        raise ConfigError("--keras and --schema are for learning only; add --training")
    directory = models.find_version(options.model)
    settings = _settings(directory, options.threads)
    with saying(f"{directory} cannot be listed"):
        names = [entry.name for entry in directory.iterdir() if is_visible(entry.name) and entry.is_file()]
    runtime, name = find(names, settings.kind)
    profiles = _profiles(runtime, directory / name, settings, options)
    if options.trace is not None:
        write_trace(options.trace, profiles)
    if options.json:
        said = [as_json(profile) for profile in profiles]
        common.print_json({"model": str(directory), "profiles": said})
    else:
        print("\n\n".join(as_table(profile) for profile in profiles))
        if options.trace is not None:
            print(f"trace: {options.trace}; open it at https://ui.perfetto.dev", file=sys.stderr)
    return common.DONE


def _settings(directory: Path, threads: int) -> RuntimeOptions:
    """Return the runtime options from the model's settings."""
    try:
        runtime = parse_model_config(read_model_config(directory.parent)).runtime
    except OSError as error:
        raise ConfigError(f"{MODEL_CONFIG_FILE} cannot be read: {error.strerror}") from error
    return RuntimeOptions(kind=runtime.kind, threads=threads, options=runtime.options)


def _profiles(
    runtime: Runtime, file: Path, settings: RuntimeOptions, options: argparse.Namespace
) -> list[Profile]:
    made = [_serving(runtime)(file, settings, options.rows, options.calls)]
    if options.training:
        made.append(_training(runtime, file, options))
    return made


_Measure = Callable[[Path, RuntimeOptions, int, int], Profile]


def _serving(runtime: Runtime) -> _Measure:
    try:
        if runtime.kind == "onnx":
            from headrace.profiling.onnx import profile_serving as measure  # noqa: PLC0415 - only when used
        elif runtime.kind == "tensorflow":
            from headrace.profiling.tensorflow import profile_serving as measure  # noqa: PLC0415 - as above
        elif runtime.kind == "ctr":
            from headrace.profiling.ctr import profile_serving as measure  # noqa: PLC0415 - as above
        else:
            raise ConfigError(
                f"profile: a {runtime.kind} model is not a graph of operations; only ONNX, TensorFlow and "
                "click models can be profiled"
            )
    except ImportError as error:
        raise needs_extra("profile", runtime.extra, error) from error
    return measure


def _training(runtime: Runtime, file: Path, options: argparse.Namespace) -> Profile:
    try:
        if runtime.kind == "ctr":
            from headrace.profiling.ctr import profile_training  # noqa: PLC0415 - only when used

            return profile_training(file, options.batch_rows, options.calls)
        if runtime.kind == "tensorflow" and options.keras and options.schema:
            from headrace.profiling.keras import profile_training as of_keras  # noqa: PLC0415 - as above

            return of_keras(options.keras, options.schema, options.batch_rows, options.calls)
    except ImportError as error:
        raise needs_extra("profile", runtime.extra, error) from error
    if runtime.kind == "tensorflow":
        raise ConfigError(
            "--training: a SavedModel does not learn; give the model that does, with --keras and --schema"
        )
    raise ConfigError(f"--training: headrace does not train {runtime.kind} models")
