"""``headrace versions DIR [NAME]``: show which versions there are on disk, and which is pinned."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli import directories
from headrace.errors import NotFound
from headrace.terminal import table
from headrace.versions.pin import list_versions, read_pin


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "versions",
        help="show the versions of models on disk",
        description="Show the versions of one model, or of all of them, and which version is pinned.",
        epilog="examples:\n  headrace versions models\n  headrace versions models ctr",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="the directory of models")
    parser.add_argument("model", metavar="NAME", nargs="?", help="one model; all of them if left out")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a line a version, newest first."""
    if not options.directory.is_dir():
        raise NotFound(f"DIR: {options.directory} is not a directory")
    directories.expect_models(options.directory)
    for name in [options.model] if options.model else _models(options.directory):
        _print_model(options.directory / name)
    return 0


def _models(directory: Path) -> list[str]:
    return sorted(
        path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def _print_model(model: Path) -> None:
    if not model.is_dir():
        raise NotFound(f"NAME: there is no model {model.name!r} in {model.parent}")
    pinned = read_pin(model)
    print(f"{model.name}{f'  (pinned to {pinned})' if pinned is not None else ''}")
    rows = [
        (
            str(found.version),
            f"{found.size_bytes / 1e6:.1f} MB",
            found.created,
            "pinned" if found.pinned else "",
            found.problem,
        )
        for found in list_versions(model)
    ]
    if rows:
        print(table(rows, right=(0, 1), indent="  "))
