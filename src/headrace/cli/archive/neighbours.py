"""``headrace archive neighbours SPACE KEY``: show the keys with the nearest vectors."""

from __future__ import annotations

import argparse

from headrace.base.errors import NotFound, shown
from headrace.base.terminal import table
from headrace.cli import common, number_types
from headrace.cli.archive import archive_options, whole_space


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="neighbours",
            help="show which keys are nearest to one",
            description="Show the keys whose vectors are nearest to a key's vector, comparing it with all.",
            examples='examples:\n  headrace archive neighbours titles "Toy Story (1995)"\n'
            "  headrace archive neighbours titles Heat --count 30 --metric l2 --json",
            failure="the store does not answer",
            run=run,
        ),
    )
    archive_options.add_space(parser)
    parser.add_argument("key", metavar="KEY", help="a key that has a vector")
    parser.add_argument(
        "--count",
        metavar="K",
        type=number_types.whole("count", least=1, most=9_999),
        default=10,
        help="how many neighbours (default 10)",
    )
    parser.add_argument(
        "--metric",
        choices=("cosine", "dot", "l2"),
        default="cosine",
        help="what nearest means: by the angle, the product, or the distance (default cosine)",
    )
    archive_options.add_archive(parser)
    archive_options.add_version(parser)
    whole_space.add_most_bytes(parser)


def run(options: argparse.Namespace) -> int:
    """Print one line per neighbour."""
    from headrace.similarity.neighbours import nearest  # noqa: PLC0415 - not needed to list the verbs

    with whole_space.progress_line() as progress:
        read = whole_space.read(options, progress)
        if options.key not in read.keys:
            embedder = archive_options.settings_of(options).spaces[options.space].embedder
            way_out = "lookup queues the key" if embedder else "put stores one"
            raise NotFound(
                f"{shown(options.key)} has no vector in version {read.version} of {options.space!r}; "
                f"headrace archive {way_out}"
            )
        row = read.keys.index(options.key)
        rows = whole_space.rows_of(read, options.metric)
        asked = slice(row, row + 1)
        scales = None if read.scales is None else read.scales[asked]
        found = nearest(rows, rows.like(read.vectors[asked], scales=scales), options.count + 1, progress)
    pairs = zip(found.rows[0].tolist(), found.similarities[0].tolist(), strict=True)
    near = [(read.keys[other], similar) for other, similar in pairs if other != row][: options.count]
    if options.json:
        neighbours = [{"key": key, "similarity": similar} for key, similar in near]
        said = {"space": options.space, "version": read.version, "key": options.key}
        common.print_json({**said, "metric": options.metric, "neighbours": neighbours})
        return common.DONE
    print(f"{options.space}, version {read.version}: the nearest to {options.key} of {len(read.keys):,}")
    lines = [(f"{similar:.4f}", key) for key, similar in near]
    print(table([(whole_space.measured(options.metric), "key"), *lines], right=(0,), indent="  "))
    return common.DONE
