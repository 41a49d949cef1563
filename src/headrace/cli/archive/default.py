"""``headrace archive default SPACE [N]``: show or change the version used by lookups that name none."""

from __future__ import annotations

import argparse

from headrace.base.errors import InvalidRequest
from headrace.cli import auditing, common, number_types
from headrace.cli.archive import archive_options, versions


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="default",
            help="show or move the default version of a space",
            description="Change the version of a space or a feature table that answers lookups that name no "
            "version, for example after a faulty load or with a faulty encoder; without N, show the "
            "versions. The change is refused if that version lacks keys of the current default. Servers and "
            "fillers follow within a second (cache.poll_seconds); models still get the versions that they "
            "were trained on.",
            examples="examples:\n  headrace archive default users\n  headrace archive default users 1\n"
            "  headrace archive default titles 2 --fewer-keys --json\n\n"
            "The check reads all keys of the current default, unless many are missing; --fewer-keys skips "
            "it.",
            failure="the version lacks keys of the default, or the store does not answer",
            run=run,
        ),
    )
    archive_options.add_space(parser)
    parser.add_argument(
        "number", metavar="N", nargs="?", help="the new default version (without N, show the versions)"
    )
    archive_options.add_archive(parser)
    auditing.add_option(parser)
    parser.add_argument(
        "--fewer-keys",
        action="store_true",
        help="change the default even if the version lacks some of its keys",
    )


def run(options: argparse.Namespace) -> int:
    """Show the versions, or change the default."""
    from headrace.archive.operations.space_versions import move_default  # noqa: PLC0415 - not needed to list the verbs

    number = options.number and number_types.whole("N", least=1, most=2**31)(options.number)
    if options.fewer_keys and not number:
        raise InvalidRequest("expected a version to move to, as in: default SPACE N", field="N")
    with archive_options.open_archive_of(options) as archive:
        before = versions.stored_record(archive, options.space)
        if number:
            with auditing.audited(options, "default", f"{options.space} version {number}"):
                after = move_default(archive, options.space, number, may_lose=options.fewer_keys)
        else:
            after = before
    if options.json:
        said = versions.described_space(options.space, after)
        common.print_json(said | {"before": before.default or None})
    elif not number:
        print(versions.listed({options.space: after}))
    elif before.default == number:
        print(f"{options.space}: version {number} answers, as before")
    else:
        print(f"{options.space}: version {number} answers now, previously {before.default or 'none'}")
    return common.DONE
