"""``headrace archive join [FILE]``: add to rows the values the archive held when they were served."""

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

from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.files import saying
from headrace.base.terminal import table
from headrace.cli import common, models
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.model_inputs.stream_join import Join, Joined, JoinSettings
    from headrace.config import InputSource
    from headrace.stream.schema import Schema
    from headrace.stream.stream_io import StreamRows

_EXAMPLES = """examples:
  headrace archive join --inputs models/ctr/headrace.toml < rows.arrows | headrace train --model deepfm
  headrace archive join rows.arrows --inputs models/ctr/headrace.toml --time served --out joined.arrows
  headrace archive join rows.arrows --inputs headrace.toml --versions images=3 --out joined.arrows
  headrace archive join rows.arrows --inputs headrace.toml --served-by models/ctr/7 --out joined.arrows

Rows with the columns INPUT.written and INPUT.version, as recorded from answers, get exactly these values;
others get the values of their own time. If another encoder's version served a row, its keys that had a vector
in that version get the vectors of the requested version."""
_HEAD = ("input", "rows", "keys", "found", "too old", "missing", "lost", "recorded")


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="join",
            help="add archive values to rows, as of the time they were served",
            description="Copy a stream of rows, adding a model's inputs from the archive as they were when "
            "each row was served: values that did not exist then are missing, and values that have changed "
            "since are the old ones.",
            examples=_EXAMPLES,
            failure="a row is wrong, the store does not answer, or the rows cannot be written",
            run=run,
        ),
    )
    add = parser.add_argument
    add("input", metavar="FILE", nargs="?", default="-", help="the stream; - for standard input (default)")
    archive_options.add_archive(parser)
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
        help="the column with the time in microseconds (default: the schema's)",
    )
    add(
        "--versions",
        metavar="NAMES",
        action="extend",
        type=common.names,
        default=[],
        help="versions of spaces, as in images=3,titles=2 (default: the default version of each space)",
    )
    _add_served(parser)
    add(
        "--schema",
        metavar="FILE",
        type=Path,
        help="the schema of the columns, including joined ones (default: the stream's)",
    )
    add("--out", metavar="FILE", type=Path, help="where to write (default standard output)")


def _add_served(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the space versions that rows were served from."""
    add = parser.add_argument
    add(
        "--served",
        metavar="NAMES",
        action="extend",
        type=common.names,
        default=[],
        help="versions of spaces that served the rows that do not record them, as in images=3 "
        "(default: the default version at each row's time)",
    )
    add(
        "--served-by",
        metavar=models.VERSION,
        type=Path,
        help="the model that served these rows, if its manifest names the versions; --served takes "
        "precedence (default: none)",
    )


def run(options: argparse.Namespace) -> int:
    """Join the rows, and print statistics."""
    from headrace.archive.model_inputs.stream_join import JoinSettings  # noqa: PLC0415 - needs an extra
    from headrace.config.headrace_toml import model_config  # noqa: PLC0415 - not needed to list the verbs
    from headrace.config.toml_reader import read_table  # noqa: PLC0415 - as above
    from headrace.stream.stream_io import StreamRows  # noqa: PLC0415 - needs an extra

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
        archive_options.open_archive_of(options) as archive,
        _open(options.input) as file,
        closing(StreamRows(file, schema)) as rows,
    ):
        join = _join(options, archive, settings, rows)
    _tell(options, join, archive)
    return common.DONE


def _join(options: argparse.Namespace, archive: Archive, settings: JoinSettings, rows: StreamRows) -> Join:
    from headrace.archive.model_inputs.stream_join import Join  # noqa: PLC0415 - needs an extra
    from headrace.stream.stream_io import ProgressLine, open_output, write_stream  # noqa: PLC0415 - as above

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
        raise ConfigError(
            "FILE: expected a stream, but standard input is a terminal; name a file or pipe one in"
        )
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
    """Return the space versions that a model is served from, for the spaces of its inputs."""
    from headrace.versions.manifest import read_manifest, space_versions  # noqa: PLC0415 - not needed to list the verbs

    if path is None:
        return {}
    spaces = {one.space for one in inputs.values()}
    said = space_versions(read_manifest(models.find_version(path)))
    return {space: number for space, number in said.items() if space in spaces}


def _schema(file: Path) -> Schema:
    from headrace.stream.schema import parse_schema  # noqa: PLC0415 - not needed to list the verbs

    with saying(f"--schema: {file} cannot be read"):
        return parse_schema(file.read_bytes(), str(file))


def _tell(options: argparse.Namespace, join: Join, archive: Archive) -> None:
    """Print statistics of the join, and a warning for lost values."""
    if options.json:
        inputs = [
            {"input": name, **dataclasses.asdict(counts), "missing": counts.missing}
            for name, counts in join.counts.items()
        ]
        common.print_json({"file": str(options.out), "spaces": join.schema.spaces, "inputs": inputs})
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
                f"headrace: {name}: {counts.lost:,} of {counts.keys:,} keys are lost: the values that they "
                f"were served with are no longer kept, and they are learnt as missing. {space} keeps "
                f"replaced values for {kept:g} seconds (history_seconds): join sooner, or keep them longer",
                file=sys.stderr,
            )


def _numbers(counts: Joined) -> tuple[int, ...]:
    found, missing = counts.found, counts.missing
    return counts.rows, counts.keys, found, counts.too_old, missing, counts.lost, counts.recorded
