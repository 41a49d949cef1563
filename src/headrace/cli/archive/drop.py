"""``headrace archive drop SPACE VERSION --models DIR``: remove a space version that no model needs."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli import auditing, common, models, number_types
from headrace.cli.archive import archive_options


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="drop",
            help="remove a version of a space that no model needs",
            description="Remove a version of a space with its vectors, their history and its dead letters. "
            "The default version cannot be removed, nor a version that a version of a model was trained on, "
            "according to the manifests below the directories.",
            examples="examples:\n  headrace archive drop images 2 --models models\n"
            "  headrace archive drop images 2 --models models --models old-models --json\n\n"
            "If it is stopped or killed, run it again.",
            failure="a version of a model needs it, it is the default, or the store does not answer",
            run=run,
        ),
    )
    archive_options.add_space(parser)
    parser.add_argument("number", metavar="N", help="the version")
    archive_options.add_archive(parser)
    auditing.add_option(parser)
    parser.add_argument(
        "--models",
        metavar=models.DIRECTORY,
        type=Path,
        action="append",
        required=True,
        help="a directory of models that may need it; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Drop the version, unless it is needed."""
    from headrace.archive.operations.space_versions import check_unneeded, drop_version  # noqa: PLC0415 - not needed to list the verbs

    number = number_types.whole("N", least=1, most=2**31)(options.number)
    with archive_options.open_archive_of(options) as archive:
        looked_at = check_unneeded(options.space, number, options.models)
        with auditing.audited(options, "drop", f"{options.space} version {number}"):
            drop_version(archive, options.space, number)
    if options.json:
        common.print_json({"space": options.space, "version": number, "model_versions": looked_at})
    else:
        print(f"dropped version {number} of {options.space}; none of {looked_at} versions of models needs it")
    return common.DONE
