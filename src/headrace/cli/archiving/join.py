"""``headrace archive join [FILE]``: rows with what the archive held when they were served."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Mapping
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import models, verbs
from headrace.cli.archiving import opened
from headrace.disk import saying
from headrace.errors import ConfigError, HeadraceError
from headrace.terminal import table

if TYPE_CHECKING:
    from headrace.archive.archive import Archive
    from headrace.archive.joining import Join, Joined, JoinSettings
    from headrace.config import InputSource
    from headrace.stream.rows import StreamRows
    from headrace.stream.schema import Schema

_EXAMPLES = """examples:
  headrace archive join --inputs models/ctr/headrace.toml < rows.arrows | headrace train --model deepfm
  headrace archive join rows.arrows --inputs models/ctr/headrace.toml --time served --out joined.arrows
  headrace archive join rows.arrows --inputs headrace.toml --versions images=3 --out joined.arrows
  headrace archive join rows.arrows --inputs headrace.toml --served-by models/ctr/7 --out joined.arrows

Rows that have what answers recorded, in the columns INPUT.written and INPUT.version, get exactly these
values; others get what there was at their time. Rows of an earlier encoder's time get the vectors of the
version that is asked for, where there was one then."""
_HEAD = ("input", "rows", "keys", "found", "too old", "missing", "lost", "recorded")


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="join",
            help="add to rows what the archive held when they were served",
            description="Write a stream of rows again, with a model's inputs that come from the archive, as "
            "they were when each row was served: what was not there then is missing, and what has changed "
            "since is what it was.",
            examples=_EXAMPLES,
            failure="a row is wrong, the store does not answer, or the rows cannot be written",
            run=run,
        ),
    )
    add = parser.add_argument
    add("input", metavar="FILE", nargs="?", default="-", help="the stream; - for standard input (default)")
    opened.add_archive(parser)
    add(
        "--inputs",
        metavar="FILE",
        type=Path,
        required=True,
        help="the model's settings, headrace.toml, with a table [inputs.NAME] for each input",
    )
    add(
        "--time",
        metavar="NAME",
        default="",
        help="which column says when: microseconds (default: the schema)",
    )
    add(
        "--versions",
        metavar="NAMES",
        action="extend",
        type=verbs.names,
        default=[],
        help="versions of spaces, as in images=3,titles=2 (default: the default ones)",
    )
    _add_served(parser)
    add(
        "--schema",
        metavar="FILE",
        type=Path,
        help="what the columns are, joined ones too (default: the stream's)",
    )
    add("--out", metavar="FILE", type=Path, help="where to write (default standard output)")


def _add_served(parser: argparse.ArgumentParser) -> None:
    """Add the options that say from which versions rows were served."""
    add = parser.add_argument
    add(
        "--served",
        metavar="NAMES",
        action="extend",
        type=verbs.names,
        default=[],
        help="the versions that served rows which do not say so, where the model's manifest names them "
        "(default: the default ones at each row's time)",
    )
    add(
        "--served-by",
        metavar=models.VERSION,
        type=Path,
        help="the model that served rows which do not say so: its manifest names the versions; --served goes "
        "first (default: none)",
    )


def run(options: argparse.Namespace) -> int:
    """Join, and say what was found."""
    from headrace.archive.joining import JoinSettings  # noqa: PLC0415 - needs an extra
    from headrace.config.model import model_config  # noqa: PLC0415 - not for the list of verbs
    from headrace.config.reading import read_table  # noqa: PLC0415 - the same
    from headrace.stream.rows import StreamRows  # noqa: PLC0415 - needs an extra

    if options.json and options.out in (None, Path("-")):
        raise ConfigError("json: standard output is the stream; add --out FILE")
    config = model_config(read_table(options.inputs, f"--inputs: {options.inputs}"), str(options.inputs))
    schema = None if options.schema is None else _schema(options.schema)
    settings = JoinSettings(
        config.inputs,
        options.time,
        _versions("--versions", options.versions),
        _served_by(options.served_by, config.inputs) | _versions("--served", options.served),
    )
    with (
        opened.open_archive_of(options) as archive,
        _open(options.input) as file,
        closing(StreamRows(file, schema)) as rows,
    ):
        join = _join(options, archive, settings, rows)
    _tell(options, join, archive)
    return verbs.DONE


def _join(options: argparse.Namespace, archive: Archive, settings: JoinSettings, rows: StreamRows) -> Join:
    from headrace.archive.joining import Join  # noqa: PLC0415 - needs an extra
    from headrace.stream.output import ProgressLine, open_output, write_stream  # noqa: PLC0415 - the same

    join = Join(archive, settings, rows.columns, rows.schema)
    progress = ProgressLine(sys.stderr, shown=None if options.out is not None else False)
    try:
        with open_output(options.out) as out:
            write_stream(out, join.arrow_schema, map(join.batch, rows), progress)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HeadraceError(f"{options.out or 'standard output'}: {error.strerror or error}") from error
    finally:
        progress.close()
    return join


def _open(name: str) -> FileIO:
    if name != "-":
        with saying(f"FILE: {name} cannot be read"):
            return FileIO(name)
    if sys.stdin.isatty():
        raise ConfigError("FILE: standard input is a terminal, and no stream; name a file or pipe one in")
    return FileIO(sys.stdin.fileno(), closefd=False)


def _versions(option: str, given: list[str]) -> dict[str, int]:
    found = {}
    for one in given:
        said = re.fullmatch(r"([^=]+)=([1-9][0-9]{0,9})", one)
        if said is None:
            raise ConfigError(f"{option}: expected SPACE=NUMBER, as in images=3, got {one!r}")
        found[said[1]] = int(said[2])
    return found


def _served_by(path: Path | None, inputs: Mapping[str, InputSource]) -> dict[str, int]:
    """The versions that a model is served from, of the spaces that its inputs come from."""
    from headrace.versions.manifest import read_manifest, space_versions  # noqa: PLC0415 - not for the list of verbs

    if path is None:
        return {}
    spaces = {one.space for one in inputs.values()}
    said = space_versions(read_manifest(models.find_version(path)))
    return {space: number for space, number in said.items() if space in spaces}


def _schema(file: Path) -> Schema:
    from headrace.stream.schema import parse_schema  # noqa: PLC0415 - not for the list of verbs

    with saying(f"--schema: {file} cannot be read"):
        return parse_schema(file.read_bytes(), str(file))


def _tell(options: argparse.Namespace, join: Join, archive: Archive) -> None:
    """Say what became of the rows, and loudly what of them is lost."""
    if options.json:
        inputs = [
            {"input": name, **dataclasses.asdict(counts), "missing": counts.missing}
            for name, counts in join.counts.items()
        ]
        verbs.print_json({"file": str(options.out), "spaces": join.schema.spaces, "inputs": inputs})
    else:
        rows = [
            (name, *(f"{number:,}" for number in _numbers(counts))) for name, counts in join.counts.items()
        ]
        print(table([_HEAD, *rows], right=range(1, len(_HEAD))), file=sys.stderr)
    for name, counts in join.counts.items():
        if counts.lost:
            space = join.sources[name].space
            kept = archive.config.spaces[space].history_seconds
            print(
                f"headrace: {name}: {counts.lost:,} of {counts.keys:,} keys are lost: what they were served "
                "with is not kept any more, and they are learnt as missing. "
                f"{space} keeps what is replaced for {kept:g} seconds (history_seconds): join "
                "sooner, or keep it longer",
                file=sys.stderr,
            )


def _numbers(counts: Joined) -> tuple[int, ...]:
    found, missing = counts.found, counts.missing
    return counts.rows, counts.keys, found, counts.too_old, missing, counts.lost, counts.recorded
