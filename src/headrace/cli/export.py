"""``headrace export DIR/NAME[/N] FILE``: write a click model as ONNX, with equal predictions."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.base.errors import ConfigError, LoadError
from headrace.cli import common, models


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="export",
            help="write a click model as ONNX",
            description="Write a published click model as ONNX. Its inputs are row numbers in the "
            "concatenated tables, not values: the caller hashes values first, because ONNX cannot.",
            examples="example:\n  headrace export models/ctr/3 model.onnx",
            failure="the file cannot be written, or the version is damaged",
            run=run,
        ),
    )
    parser.add_argument(
        "model",
        metavar=models.VERSION,
        type=Path,
        help="a click model (its newest version), or version N",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the file to write, for example model.onnx")


def run(options: argparse.Namespace) -> int:
    """Export the model, and print where."""
    version = models.find_version(options.model)
    try:
        # Imported late: compiled kernels and optional packages.
        from headrace.ctr.files.model_files import MODEL_FILE, read_model  # noqa: PLC0415
        from headrace.ctr.files.onnx_export import export  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"export: {error}; pip install 'headrace[ctr]' onnx") from error
    if not (version / MODEL_FILE).is_file():
        raise ConfigError(
            f"{models.VERSION}: {version} holds no click model ({MODEL_FILE}); only click models can be "
            "exported"
        )
    settings, features, weights = read_model(version)
    try:
        export(settings, features, weights, options.file)
    except OSError as error:
        raise LoadError(f"{options.file} cannot be written: {error.strerror}") from error
    if options.json:
        said = {"model": str(version), "file": str(options.file), "kind": settings.kind}
        common.print_json({**said, "table_rows": features.rows})
    else:
        print(f"{options.file}: {settings.kind} with {features.rows} rows of tables")
    return common.DONE
