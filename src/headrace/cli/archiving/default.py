"""``headrace archive default SPACE [N]``: show which version bare lookups are answered from, or move that."""

from __future__ import annotations

import argparse

from headrace.cli import auditing, numbers, verbs
from headrace.cli.archiving import opened, versions
from headrace.errors import InvalidRequest


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="default",
            help="show or move the default version of a space",
            description="Have bare lookups of a space or a feature table answered from another version, as "
            "after a load or an encoder that was a mistake; without N, show the versions. It is refused "
            "where that version lacks keys of the present default. Servers and fillers follow within a "
            "second (cache.poll_seconds); models go on getting the versions that they were trained on.",
            examples="examples:\n  headrace archive default users\n  headrace archive default users 1\n"
            "  headrace archive default titles 2 --fewer-keys --json\n\n"
            "All keys of the present default are read for that, unless many are lacking; with --fewer-keys, "
            "none.",
            failure="the version lacks keys of the default, or the store does not answer",
            run=run,
        ),
    )
    opened.add_space(parser)
    parser.add_argument("number", metavar="N", nargs="?", help="the version (default: move nothing)")
    opened.add_archive(parser)
    auditing.add_option(parser)
    parser.add_argument(
        "--fewer-keys", action="store_true", help="move it even if keys of the default are missing then"
    )


def run(options: argparse.Namespace) -> int:
    """Show, or move."""
    from headrace.archive.moving import move_default  # noqa: PLC0415 - not for the list of verbs

    number = options.number and numbers.whole("N", least=1, most=2**31)(options.number)
    if options.fewer_keys and not number:
        raise InvalidRequest("expected a version to move to, as in: default SPACE N", field="N")
    with opened.open_archive_of(options) as archive:
        before = versions.stored_record(archive, options.space)
        if number:
            with auditing.told(options, "default", f"{options.space} version {number}"):
                after = move_default(archive, options.space, number, may_lose=options.fewer_keys)
        else:
            after = before
    if options.json:
        said = versions.described_space(options.space, after)
        verbs.print_json(said | {"before": before.default or None})
    elif not number:
        print(versions.listed({options.space: after}))
    elif before.default == number:
        print(f"{options.space}: version {number} answers, as before")
    else:
        print(f"{options.space}: version {number} answers now, before that {before.default or 'none'}")
    return verbs.DONE
