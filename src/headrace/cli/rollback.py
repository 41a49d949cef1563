"""``headrace rollback DIR NAME``: pin a model to an older version; running servers follow within a poll."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli import directories
from headrace.errors import InvalidRequest, NotFound
from headrace.versions.pin import list_versions, pin, read_pin, unpin


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "rollback",
        help="pin a model to an older version, or release the pin",
        description="Pin a model to a version. Servers that watch the directory load it, warm it up, "
        "and move to it without losing a request. Newer versions wait until the pin is released.",
        epilog="examples:\n  headrace rollback models ctr            to the version before the present one\n"
        "  headrace rollback models ctr --to 3\n  headrace rollback models ctr --release",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="the directory of models")
    parser.add_argument("model", metavar="NAME", help="the model")
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument(
        "--to", type=int, metavar="N", help="the version; the one before the present one if left out"
    )
    goal.add_argument(
        "--release", action="store_true", help="remove the pin: the version policy decides again"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Pin or unpin, and say what that means."""
    directories.expect_models(options.directory)
    model: Path = options.directory / options.model
    if not model.is_dir():
        raise NotFound(f"NAME: there is no model {options.model!r} in {options.directory}")
    if options.release:
        unpin(model)
        print(f"{options.model}: released; the version policy decides again")
        return 0
    target = options.to if options.to is not None else _previous(model)
    if target not in _numbers(model):
        raise NotFound(
            f"--to: {options.model} has no version {target}; see `headrace versions {options.directory}`"
        )
    pin(model, target)
    print(f"{options.model}: pinned to version {target}; `--release` ends that")
    return 0


def _numbers(model: Path) -> list[int]:
    return sorted(found.version for found in list_versions(model))


def _previous(model: Path) -> int:
    numbers = _numbers(model)
    pinned = read_pin(model)
    present = pinned if pinned is not None else (numbers[-1] if numbers else 0)
    older = [number for number in numbers if number < present]
    if not older:
        raise InvalidRequest(f"there is no version before {present}", field="--to")
    return older[-1]
