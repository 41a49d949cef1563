"""``headrace export DIR/NAME/NUMBER model.onnx``: a click model as ONNX, with equal predictions."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli import directories
from headrace.errors import ConfigError, LoadError
from headrace.versions.layout import version_directories


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "export",
        help="write a click model as ONNX",
        description="Write a published click model as ONNX. Its inputs are rows of all tables together "
        "instead of values, because hashing stays outside.",
        epilog="example:\n  headrace export models/ctr/3 model.onnx",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("version", metavar="DIR", type=Path, help="a model, or one version of it")
    parser.add_argument("file", metavar="FILE", type=Path, help="where to, for example model.onnx")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Export, and say where to."""
    directories.expect_one_model(options.version)
    try:
        # Compiled kernels and optional packages, only when used.
        from headrace.ctr.files.description import MODEL_FILE  # noqa: PLC0415
        from headrace.ctr.files.onnx_export import export  # noqa: PLC0415
        from headrace.ctr.files.reading import read_model  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"export: {error}; pip install 'headrace[ctr]' onnx") from error
    versions = version_directories(options.version) if options.version.is_dir() else {}
    version = versions[max(versions)] if versions else options.version
    if version.is_dir() and not (version / MODEL_FILE).is_file():
        raise ConfigError(f"DIR: {version} holds no click model ({MODEL_FILE}); others are not exported")
    settings, features, weights = read_model(version)
    try:
        export(settings, features, weights, options.file)
    except OSError as error:
        raise LoadError(f"{options.file} cannot be written: {error.strerror}") from error
    print(f"{options.file}: {settings.kind} with {features.rows} rows of tables")
    return 0
