"""``headrace compile``: the kernels of click models, compiled before anybody waits for them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import directories
from headrace.errors import ConfigError, HeadraceError
from headrace.versions.layout import version_directories

if TYPE_CHECKING:
    from headrace.ctr.files.quantization import Bits
    from headrace.stream.schema import Schema

_EXAMPLES = """examples:
  headrace compile models                         what the models in a directory need
  headrace compile --factors 8 --factors 16       what any model with 8 or 16 factors needs, or with none
  headrace compile --quantize 16 --quantize 8     and those that are published in fewer bits
  NUMBA_CACHE_DIR=/kernels headrace compile       in an image: keep them where the server will look

Kernels are kept in NUMBA_CACHE_DIR, else beside the sources, else in ~/.cache/numba: the first that can be
written to. They fit the kind of processor that they were compiled on, and this version of headrace.
"""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "compile",
        help="compile what click models need ahead, for example in an image",
        description="Compile the kernels that serving click models needs, and keep them on disk: a server "
        "that finds them there answers at once, and needs to write nowhere.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "models",
        metavar="DIR",
        type=Path,
        nargs="?",
        help="the directory of models; without it, for any model",
    )
    parser.add_argument(
        "--factors",
        type=int,
        action="append",
        metavar="N",
        help="the models' factors (default 8); may be repeated",
    )
    parser.add_argument(
        "--quantize",
        type=int,
        action="append",
        choices=(16, 8),
        help="also for tables in so many bits; may be repeated",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compile, and say what and where."""
    try:
        # Compiled kernels, only when used.
        from headrace.compiled import kept_where  # noqa: PLC0415
        from headrace.runtimes import ctr, ctr_kernels  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"compile: {error}; pip install 'headrace[ctr]'") from error
    where = kept_where()
    if where is None:
        raise ConfigError(
            "compile: kernels cannot be kept: set NUMBA_CACHE_DIR to a directory that can be written to"
        )
    found, failed = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, version in _versions(options, Path(folder)):
            found += 1
            print(f"  {name} …", end="", flush=True)
            started = time.monotonic()
            try:
                ctr_kernels.run_once(ctr.servable_of(version))
            except HeadraceError as error:
                failed += 1
                print(f" failed: {error.message}", flush=True)
            else:
                print(f" {time.monotonic() - started:.1f} s", flush=True)
    if not found:
        print(f"{options.models} holds no click model: nothing is to be compiled", file=sys.stderr)
    print(f"kernels are kept in {where.parent if where.name != '__pycache__' else where}")
    return 1 if failed else 0


def _versions(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    if options.models is None:
        yield from _made_up(options.factors or [8], options.quantize or [], folder)
        return
    if options.factors or options.quantize:
        raise ConfigError("compile: --factors and --quantize are for any model; DIR says what its own need")
    if not options.models.is_dir():
        raise ConfigError(f"DIR: {options.models} is not a directory")
    directories.expect_models(options.models)
    from headrace.ctr.files.description import MODEL_FILE  # noqa: PLC0415 - compiled kernels, only when used

    for model in sorted(path for path in options.models.iterdir() if path.is_dir() and path.name[0] != "."):
        for number, version in version_directories(model).items():
            if (version / MODEL_FILE).is_file():
                yield f"{model.name}/{number}", version


def _made_up(factors: list[int], quantize: list[Bits], folder: Path) -> Iterator[tuple[str, Path]]:
    """Small models of every kind, with every sort of field, in a directory."""
    from headrace.ctr.factory import create  # noqa: PLC0415
    from headrace.ctr.files.quantization import quantize as in_bits  # noqa: PLC0415
    from headrace.ctr.files.writing import write_model  # noqa: PLC0415 - as above
    from headrace.ctr.settings import KINDS, ModelSettings  # noqa: PLC0415
    from headrace.stream.features import Features  # noqa: PLC0415

    features = Features.of(_schema())
    for count in factors:
        for kind in KINDS:
            settings = ModelSettings(kind=kind, factors=count, hidden=(8,))
            weights = create(settings, features).strip()
            for bits in (None, *quantize):
                version = folder / f"{kind}-{count}-{bits or 32}"
                version.mkdir()
                write_model(version, settings, features, weights if bits is None else in_bits(weights, bits))
                number = "" if kind == "lr" else f", {count} factors"
                yield f"{kind}{number}, {bits or 32} bits", version


def _schema() -> Schema:
    """Every sort of field: each has kernels of its own."""
    from headrace.stream.schema import Field, Schema  # noqa: PLC0415 - as above

    def category(name: str, **how: Any) -> Field:
        return Field(name=name, role="categorical", buckets=16, **how)

    return Schema(
        fields=(
            category("number", context=True),
            category("numbers", values=2),
            category("text", text=True, context=True),
            category("bucket", keys="bucket"),
            category("exact_number", keys="exact", context=True),
            category("exact_text", keys="exact", text=True),
            Field(name="dense", role="dense", context=True),
            Field(name="vector", role="vector", size=2),
            Field(name="label", role="label"),
        )
    )
