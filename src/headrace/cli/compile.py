"""``headrace compile``: compile the kernels of click models, archives and Vowpal Wabbit ahead of serving."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.errors import ConfigError, HeadraceError, needs_extra
from headrace.base.files import saying
from headrace.cli import common, models, number_types
from headrace.versions.layout import version_directories

if TYPE_CHECKING:
    from headrace.ctr.files.quantization import Bits
    from headrace.stream.schema import Schema

_EXAMPLES = """examples:
  headrace compile models                         kernels for the models in a directory
  headrace compile --factors 8 --factors 16       for any model with 8 or 16 factors, or with none,
                                                  and an archive
  headrace compile --quantize 16 --quantize 8     and for models that are published in fewer bits
  NUMBA_CACHE_DIR=/kernels headrace compile       in an image: store them where the server will look

Kernels are kept in NUMBA_CACHE_DIR, else beside the sources, else in ~/.cache/numba: the first that is
writable. They are only valid for the type of processor they were compiled on, and this version of headrace.
"""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="compile",
            help="compile the kernels of click models, archives and Vowpal Wabbit ahead of serving",
            description="Compile the kernels of click models and of Vowpal Wabbit, and cache them on disk, "
            "so that a server starts without compiling and needs no writable directory. Without DIR, compile "
            "those of all kinds of models and of archives.",
            examples=_EXAMPLES,
            failure="a model could not be loaded",
            run=run,
        ),
    )
    parser.add_argument(
        "models",
        metavar=models.ANY,
        type=Path,
        nargs="?",
        help="a directory of models, one of them, or one version; without it, for any model",
    )
    parser.add_argument(
        "--factors",
        type=number_types.whole("factors"),
        action="append",
        metavar="N",
        help="the models' factors (default 8); may be repeated",
    )
    parser.add_argument(
        "--quantize",
        type=int,
        action="append",
        choices=(16, 8),
        help="also for tables in this many bits; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Compile the kernels, and print which and where."""
    try:
        # Imported late: compiled kernels.
        from headrace.jit.kernel_cache import kept_where  # noqa: PLC0415
        from headrace.runtimes import ctr, vw  # noqa: F401, PLC0415
    except ImportError as error:
        raise needs_extra("compile", "ctr", error) from error
    where = kept_where()
    if where is None:
        raise ConfigError("compile: kernels cannot be stored: set NUMBA_CACHE_DIR to a writable directory")
    done: list[tuple[str, float, str | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, run_once in _kernels(options, Path(folder)):
            if not options.json:
                print(f"  {name} …", end="", flush=True)
            started = time.monotonic()
            problem = None
            try:
                run_once()
            except HeadraceError as raised:
                problem = raised.message
            done.append((name, time.monotonic() - started, problem))
            if not options.json:
                print(f" failed: {problem}" if problem else f" {done[-1][1]:.1f} s", flush=True)
    if not done:
        print(
            f"{options.models} has no click model and no Vowpal Wabbit model; nothing to compile",
            file=sys.stderr,
        )
    is_beside = where.name == "__pycache__"  # each module's kernels are in the one beside it
    kept = where.parents[1] if is_beside else where.parent
    if options.json:
        said = [{"name": name, "seconds": round(took, 3), "error": why} for name, took, why in done]
        common.print_json({"directory": str(kept), "compiled": said})
    else:
        print(f"kernels are kept in {kept}" + (", in __pycache__ beside each source" if is_beside else ""))
    return common.FAILED if any(why for _, _, why in done) else common.DONE


def _run_archives() -> None:
    # Imported late: compiled kernels.
    from headrace.archive.lookup import cache_kernels  # noqa: PLC0415
    from headrace.archive.windows import counters as windows  # noqa: PLC0415
    from headrace.storage.stores import lmdb_pages  # noqa: PLC0415

    for kernels in (cache_kernels, lmdb_pages, windows):
        kernels.run_once()


def _run_version(version: Path) -> None:
    from headrace.runtimes import ctr  # noqa: PLC0415 - compiled kernels

    ctr.run_once(ctr.servable_of(version))


def _kernels(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield everything that needs kernels: its name, and a function that runs them once."""
    from headrace.runtimes import vw  # noqa: PLC0415 - compiled kernels

    if options.models is None:
        yield "archive", _run_archives
        yield "Vowpal Wabbit", vw.run_once
        for name, version in _generated_models(options.factors or [8], options.quantize or [], folder):
            yield name, partial(_run_version, version)
        return
    if options.factors or options.quantize:
        raise ConfigError(
            "compile: --factors and --quantize cannot be combined with DIR, whose models determine them"
        )
    from headrace.ctr.files.model_files import MODEL_FILE  # noqa: PLC0415 - compiled kernels

    for model, wanted in models.find_models(options.models):
        with saying(f"{model} cannot be listed"):
            there = version_directories(model)
        for number, version in there.items():
            if wanted not in (None, number):
                continue
            name = f"{models.name_of(model)}/{number}"
            if os.path.isfile(version / MODEL_FILE):
                yield name, partial(_run_version, version)
            elif any(version.glob("*.vw.txt")):
                yield name, vw.run_once


def _generated_models(factors: list[int], quantize: list[Bits], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield small generated models of every kind, with every sort of field, written to a directory."""
    from headrace.ctr.factory import create  # noqa: PLC0415
    from headrace.ctr.files.model_files import write_model  # noqa: PLC0415 - as above
    from headrace.ctr.files.quantization import quantize as in_bits  # noqa: PLC0415
    from headrace.ctr.model_settings import KINDS, ModelSettings  # noqa: PLC0415
    from headrace.stream.block import Features  # noqa: PLC0415

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
    """Return a schema with every sort of field, as each has its own kernels."""
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
