"""``headrace versions DIR[/NAME[/N]]``: show which versions there are on disk, and which is pinned."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli import models, verbs
from headrace.disk import saying
from headrace.terminal import table
from headrace.versions.pin import VersionOnDisk, list_versions, read_pin


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="versions",
            help="show the versions of models on disk",
            description="Show the versions of one model, or of all of them, and which version is pinned.",
            examples="examples:\n  headrace versions models\n  headrace versions models/ctr --json",
            failure="a directory cannot be read",
            run=run,
        ),
    )
    parser.add_argument(
        "models", metavar=models.ANY, type=Path, help="a directory of models, one of them, or one version"
    )


def run(options: argparse.Namespace) -> int:
    """Print a line a version, newest first."""
    with saying(f"{options.models} cannot be listed"):
        found = [
            (models.name_of(model), read_pin(model), _listed(model, number))
            for model, number in models.find_models(options.models)
        ]
    if options.json:
        verbs.print_json({"models": [_object(*one) for one in found]})
    else:
        for one in found:
            _print_model(*one)
    return verbs.DONE


def _listed(model: Path, number: int | None) -> list[VersionOnDisk]:
    return [one for one in list_versions(model) if number in (None, one.version)]


def _object(name: str, pinned: int | None, versions: list[VersionOnDisk]) -> dict[str, object]:
    return {
        "name": name,
        "pinned": pinned,
        "versions": [
            {
                "version": one.version,
                "size_bytes": one.size_bytes,
                "created": one.created or None,
                "pinned": one.pinned,
                "problem": one.problem or None,
            }
            for one in versions
        ],
    }


def _print_model(name: str, pinned: int | None, versions: list[VersionOnDisk]) -> None:
    print(f"{name}{f'  (pinned to {pinned})' if pinned is not None else ''}")
    rows = [
        (
            str(found.version),
            f"{found.size_bytes / 1e6:.1f} MB",
            found.created,
            "pinned" if found.pinned else "",
            found.problem,
        )
        for found in versions
    ]
    if rows:
        print(table(rows, right=(0, 1), indent="  "))
