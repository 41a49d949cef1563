"""``headrace key VERB``: manage the keys of a server's callers."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import Conflict, InvalidRequest, NotFound, instead
from headrace.base.files import saying, whole_file
from headrace.base.terminal import table
from headrace.cli import auditing, common, number_types
from headrace.config import checks

if TYPE_CHECKING:
    from headrace.access.keys import KeyEntry

_FILE = Path("keys.toml")
_EXAMPLES = """examples:
  headrace key new ranking --verbs predict --models 'ctr*'
  headrace key list
  headrace key revoke ranking
  headrace serve models --access-file keys.toml
"""
_MOST_DAYS = 36_500
_PATIENCE_SECONDS, _LOOK_SECONDS = 10.0, 0.02
_PRIORITIES = ("1", "2", "3")
_FOR_MODELS, _FOR_SPACES = ("predict", "feedback", "route"), ("archive-read", "archive-write")


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs to the command line."""
    parser = words.add_parser(
        "key",
        help="create, list and revoke the keys of callers",
        description="Manage the keys of a server's callers: who may do what, with which models and spaces.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = common.add_verbs(parser)
    _add_new(below)
    _add(
        below,
        run_list,
        name="list",
        help="list keys, their callers and permissions",
        description="List the keys of a file: their callers, what they permit, when they expire.",
        examples="examples:\n  headrace key list\n  headrace key list --file /etc/headrace/keys.toml --json",
        failure="the file cannot be read",
    )
    revoke = _add(
        below,
        run_revoke,
        name="revoke",
        help="remove keys from the file",
        description="Remove one key from the file, by its id, or all keys of a caller. Servers that follow "
        "the file refuse them within two seconds, and end the streams that they have opened.",
        examples="examples:\n  headrace key revoke ranking\n  headrace key revoke 0123456789ab",
        failure="the file cannot be written",
    )
    auditing.add_option(revoke)
    revoke.add_argument("name", metavar="NAME", help="the caller, or the id of one key")


def _add(
    words: argparse._SubParsersAction[argparse.ArgumentParser],
    run: Callable[[argparse.Namespace], int],
    **said: str,
) -> argparse.ArgumentParser:
    parser = common.add(words, common.Verb(run=run, **said))
    parser.add_argument(
        "--file", metavar="FILE", type=Path, default=_FILE, help=f"the file of keys (default {_FILE})"
    )
    return parser


def _add_new(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        words,
        run_new,
        name="new",
        help="create a key, and print it once",
        description="Create a key for a caller, add its digest to the file, and print the key on standard "
        "output. It cannot be printed again. Servers that follow the file accept it within two seconds.",
        examples="examples:\n  headrace key new ranking --verbs predict --models 'ctr*'\n"
        "  headrace key new feeds --verbs archive-read,archive-write --spaces titles --days 90\n"
        "  headrace key new prometheus --verbs metrics\n"
        "  headrace key new batch --models '*' --rows-per-second 50000 --priorities 3",
        failure="the file cannot be written",
    )
    parser.add_argument("name", metavar="NAME", help="the caller; a caller may have several keys")
    parser.add_argument(
        "--verbs",
        metavar="NAMES",
        type=common.names,
        default=("predict",),
        help="what it permits, separated by commas: predict, feedback, archive-read, archive-write, route, "
        "admin, metrics (default predict)",
    )
    parser.add_argument(
        "--models",
        metavar="NAMES",
        type=common.names,
        default=(),
        help="patterns of the models that it is for, such as 'ctr*'",
    )
    parser.add_argument(
        "--spaces",
        metavar="NAMES",
        type=common.names,
        default=(),
        help="patterns of the archive's spaces that it is for",
    )
    parser.add_argument(
        "--days",
        metavar="N",
        type=number_types.whole("days"),
        default=0,
        help="for how many days it is valid; 0 = until it is revoked (default 0)",
    )
    _add_limits(parser)
    auditing.add_option(parser)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    for what, counted in (("requests", "calls"), ("rows", "rows of predictions")):
        parser.add_argument(
            f"--{what}-per-second",
            metavar="R",
            type=number_types.above_zero(f"{what}-per-second", most=checks.LARGEST_RATE),
            help=f"maximum {counted} per second for the caller, over all workers together (default: no "
            "limit)",
        )
    parser.add_argument(
        "--burst-seconds",
        metavar="S",
        type=number_types.seconds("burst-seconds", most=checks.DAY),
        default=1.0,
        help="how many seconds' worth of requests and of rows may arrive at once (default 1)",
    )
    parser.add_argument(
        "--concurrent-requests",
        metavar="N",
        type=number_types.whole("concurrent-requests"),
        default=0,
        help="maximum number of its concurrent calls; 0 = any number (default 0)",
    )
    parser.add_argument(
        "--priorities",
        metavar="NAMES",
        type=common.names,
        default=("2", "3"),
        help="the priority classes that its requests may have, separated by commas; 1 is the highest "
        "(default 2,3)",
    )


def run_new(options: argparse.Namespace) -> int:
    """Create a key, and print it."""
    from headrace.access.keys import (  # noqa: PLC0415 - not needed to list the verbs
        NEW_FILE,
        draw,
        with_key,
    )

    key = draw()
    entry = _entry(options, key.id, key.digest)
    with _exclusive(options.file):
        text = _text(options.file) if options.file.exists() else NEW_FILE
        with auditing.audited(options, "key-new", f"{entry.name} {entry.id} in {options.file}"):
            _write(options.file, with_key(text, entry, str(options.file)))
    if options.json:
        common.print_json({**_said(entry), "key": key.text})
    else:
        print(key.text)
    for doubt in _doubts(entry):
        print(f"headrace: {doubt}", file=sys.stderr)
    return common.DONE


def _doubts(entry: KeyEntry) -> Iterator[str]:
    """Yield a warning for each permission of a key that applies to no model or space."""
    for kind, wanting, named in (
        ("models", _FOR_MODELS, entry.models),
        ("spaces", _FOR_SPACES, entry.spaces),
    ):
        unused = [verb for verb in entry.verbs if verb in wanting]
        if unused and not named:
            yield f"the key permits {', '.join(unused)}, but names no {kind}; create one with --{kind} NAMES"


def run_list(options: argparse.Namespace) -> int:
    """Print the keys."""
    from headrace.access.keys import parse_keys  # noqa: PLC0415 - as above

    entries = parse_keys(_text(options.file), str(options.file)).key
    if options.json:
        common.print_json({"keys": [_said(entry) for entry in entries]})
        return common.DONE
    rows = [("caller", "id", "verbs", "models", "spaces", "expires")]
    for entry in entries:
        said = _said(entry)
        expires = f"{said['expires'] or 'never'}{'' if said['state'] == 'valid' else ' (expired)'}"
        verbs_told, models, spaces = map(" ".join, (entry.verbs, entry.models, entry.spaces))
        rows.append((entry.name, entry.id, verbs_told, models, spaces, expires))
    print(table(rows) if entries else "no keys")
    return common.DONE


def run_revoke(options: argparse.Namespace) -> int:
    """Revoke keys."""
    from headrace.access.keys import parse_keys, without_keys  # noqa: PLC0415

    with _exclusive(options.file):
        text = _text(options.file)
        entries = parse_keys(text, str(options.file)).key
        gone = [entry.id for entry in entries if options.name in (entry.name, entry.id)]
        if not gone:
            others = instead(options.name, {one.name for one in entries})
            raise NotFound(f"there is no caller and no key id {options.name!r}; {others}")
        with auditing.audited(options, "key-revoke", f"{', '.join(gone)} in {options.file}"):
            _write(options.file, without_keys(text, gone, str(options.file)))
    if options.json:
        common.print_json({"revoked": gone})
    else:
        print(f"revoked {', '.join(gone)}")
    return common.DONE


def _entry(options: argparse.Namespace, public: str, digest: str) -> KeyEntry:
    from headrace.access.keys import KeyEntry  # noqa: PLC0415 - as above
    from headrace.access.permissions import VERBS  # noqa: PLC0415 - as above

    unknown = [verb for verb in options.verbs if verb not in VERBS]
    if unknown or not options.verbs:
        got = repr(unknown[0]) if unknown else "none"
        raise InvalidRequest(f"expected some of {', '.join(VERBS)}, got {got}", field="--verbs")
    if options.days > _MOST_DAYS:
        raise InvalidRequest(f"expected at most {_MOST_DAYS} days, got {options.days}", field="--days")
    if not set(options.priorities) <= set(_PRIORITIES):
        given = ",".join(options.priorities)
        raise InvalidRequest(
            f"expected some of {', '.join(_PRIORITIES)}, got {given:.40}", field="--priorities"
        )
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=options.days)
    return KeyEntry(
        name=options.name,
        id=public,
        digest=digest,
        verbs=tuple(dict.fromkeys(options.verbs)),
        models=options.models,
        spaces=options.spaces,
        expires=until if options.days else None,
        requests_per_second=options.requests_per_second or 0.0,
        rows_per_second=options.rows_per_second or 0.0,
        burst_seconds=options.burst_seconds,
        concurrent_requests=options.concurrent_requests,
        priorities=tuple(sorted({int(one) for one in options.priorities})),
    )


def _said(entry: KeyEntry) -> dict[str, object]:
    from headrace.access.caller import CallerLimits  # noqa: PLC0415 - as above
    from headrace.access.keys import states  # noqa: PLC0415 - as above

    return {
        "name": entry.name,
        "id": entry.id,
        "verbs": entry.verbs,
        "models": entry.models,
        "spaces": entry.spaces,
        "expires": None if entry.expires is None else entry.expires.isoformat(),
        "state": states(entry),
        **CallerLimits.of(entry)._asdict(),
        "priorities": entry.priorities,
    }


@contextmanager
def _exclusive(file: Path) -> Iterator[None]:
    """Lock a file against concurrent key verbs, whose changes would overwrite each other.

    Raises:
        Conflict: Waiting for the lock timed out.
    """
    with saying(f"{file.parent} cannot be opened"):
        directory = os.open(file.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _locked(directory):
            if time.monotonic() >= deadline:
                raise Conflict(
                    f"the lock on {file.parent} was not free within {_PATIENCE_SECONDS:g} s; another "
                    "`headrace key` may be running or suspended"
                )
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(directory)


def _locked(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, which NFS may be for directories
        return True
    return True


def _text(file: Path) -> str:
    with saying(f"{file} cannot be read"):
        return file.read_text("utf-8")


def _write(file: Path, text: str) -> None:
    """Write the file atomically, with its current permissions; a new file is readable by its owner only."""
    with saying(f"{file} cannot be written"):
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
        with whole_file(file) as opened:
            Path(opened.name).chmod(mode)
            opened.write(text.encode())
