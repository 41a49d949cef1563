"""``headrace archive dead-letters VERB``: list, replay or drop keys that could not be embedded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from headrace.base.terminal import table
from headrace.cli import auditing, common
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.lookup.dead_letter_records import DeadLetter

_EXAMPLES = """examples:
  headrace archive dead-letters list posters
  headrace archive dead-letters replay posters
  headrace archive dead-letters drop posters https://images.example/7.jpg"""

_HEAD = ("space", "version", "key", "reason", "attempts", "died")
_AT_ONCE = 1000


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs to the command line."""
    parser = words.add_parser(
        "dead-letters",
        help="list, replay or drop keys that could not be embedded",
        description="List the keys that could not be embedded, with their reasons; queue them again after "
        "the cause is corrected; or drop them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tools = common.add_verbs(parser)
    _add(
        tools, "list", "show keys and reasons", "Show the keys that could not be embedded, and why.", run_list
    )
    queues = "Queue keys again, and drop their dead letters."
    drops = "Drop dead letters; a key that is looked up again is tried again."
    auditing.add_option(_add(tools, "replay", "queue them again", queues, run_replay))
    auditing.add_option(_add(tools, "drop", "drop their dead letters", drops, run_drop))


def _add(
    tools: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help_: str,
    description: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = common.add(
        tools,
        common.Verb(
            name=name,
            help=help_,
            description=description,
            examples=f"examples:\n  headrace archive dead-letters {name}\n"
            f"  headrace archive dead-letters {name} posters https://images.example/7.jpg",
            failure="the store or the queue does not answer",
            run=run,
        ),
    )
    parser.add_argument("space", metavar="SPACE", nargs="?", default="", help="a space (default: all)")
    parser.add_argument("keys", metavar="KEY", nargs="*", help="only these keys")
    archive_options.add_archive(parser)
    return parser


def run_list(options: argparse.Namespace) -> int:
    """Print one line per key."""
    with archive_options.open_archive_of(options) as archive:
        letters = list(_selected(archive, options))
        damaged = archive.dead_letters.damaged
    if damaged:
        those = "1 dead letter" if damaged == 1 else f"{damaged} dead letters"
        print(f"{those} cannot be read; forget or invalidate the key to remove one", file=sys.stderr)
    if options.json:
        common.print_json({"dead_letters": msgspec.to_builtins(letters), "damaged": damaged})
    elif letters:
        print(table([_HEAD, *(_row(one) for one in letters)], right=(1, 4)))
    else:
        print("no dead letters")
    return common.DONE


def run_replay(options: argparse.Namespace) -> int:
    """Queue keys again; each dead letter is dropped once its key is queued."""
    with archive_options.open_archive_of(options) as archive, _audited(options, "replay-dead-letters"):
        replayed = 0
        for letters in _in_parts(_selected(archive, options)):
            for space, version in {(one.space, one.version) for one in letters}:
                those = [one for one in letters if (one.space, one.version) == (space, version)]
                # Keep the letters until the keys are queued, as non-final ones, which do not block retries.
                those = [msgspec.structs.replace(one, is_final=False) for one in those]
                archive.dead_letters.add(those)
                archive.want(space, [one.key for one in those], version)
                archive.dead_letters.remove(those)
                replayed += len(those)
    _tell(options, "queued again", replayed)
    return common.DONE


def run_drop(options: argparse.Namespace) -> int:
    """Drop dead letters."""
    with archive_options.open_archive_of(options) as archive, _audited(options, "drop-dead-letters"):
        dropped = 0
        for letters in _in_parts(_selected(archive, options)):
            archive.dead_letters.remove(letters)
            dropped += len(letters)
    _tell(options, "dropped", dropped)
    return common.DONE


def _audited(options: argparse.Namespace, action: str) -> AbstractContextManager[object]:
    keys = len(set(options.keys))
    space = options.space or "all spaces"
    return auditing.audited(options, action, f"{space}, keys: {keys}" if keys else space)


def _selected(archive: Archive, options: argparse.Namespace) -> Iterator[DeadLetter]:
    if options.space:
        archive.record(options.space)  # raises NotFound for an unknown space
    keys = set(options.keys)
    return (one for one in archive.dead_letters.all(options.space) if not keys or one.key in keys)


def _in_parts(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Yield the letters in parts, all read in advance, so that removals do not affect the scan."""
    there = list(letters)
    for start in range(0, len(there), _AT_ONCE):
        yield there[start : start + _AT_ONCE]


def _tell(options: argparse.Namespace, done: str, keys: int) -> None:
    if options.json:
        common.print_json({"keys": keys})
    else:
        print(f"{done}: {keys:,} {'key' if keys == 1 else 'keys'}")


def _row(letter: DeadLetter) -> tuple[str, ...]:
    died = datetime.fromtimestamp(letter.died, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return letter.space, str(letter.version), letter.key, letter.reason, str(letter.attempts), died
