"""``headrace archive plot SPACE``: draw a space in two dimensions."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from headrace.base.files import saying
from headrace.cli import common, number_types
from headrace.cli.archive import archive_options, whole_space

if TYPE_CHECKING:
    from headrace.archive.operations.space_versions import Whole
    from headrace.similarity.layout import Layout
    from headrace.similarity.stored_rows import Rows

_MOST_LABEL_BYTES = 1024**3
_NO_LABEL = "no label"

_EXAMPLES = """examples:
  headrace archive plot titles
  headrace archive plot titles --method tsne --labels genres.csv --out titles.svg

Colours show clusters, or labels from a CSV file with lines of key,label."""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="plot",
            help="draw a space in two dimensions",
            description="Draw the vectors of a space in two dimensions, coloured by cluster or by label, "
            "with some keys named. It needs the extra plot, and for t-SNE the extra sklearn.",
            examples=_EXAMPLES,
            failure="the store does not answer, or the picture cannot be written",
            run=run,
        ),
    )
    archive_options.add_space(parser)
    add = parser.add_argument
    add("--out", metavar="FILE", type=Path, help="the picture: .png, .svg or .pdf (default SPACE.png)")
    add(
        "--method",
        choices=("pca", "tsne"),
        default="pca",
        help="pca: the two directions of largest variance, for up to 50000 vectors; tsne: keeps neighbours "
        "together, for up to 5000 vectors (default pca)",
    )
    add("--labels", metavar="FILE", type=Path, help="labels of the keys, as CSV: key,label; they set colours")
    add(
        "--clusters",
        metavar="N",
        type=number_types.whole("clusters", least=1, most=9),
        default=8,
        help="how many clusters to colour, if there are no labels (default 8)",
    )
    add(
        "--names",
        metavar="N",
        type=number_types.whole("names", least=0, most=500),
        default=30,
        help="maximum number of keys to name, if there is room (default 30)",
    )
    add(
        "--most",
        metavar="N",
        type=number_types.whole("most", least=0, most=50_000),
        default=0,
        help="maximum number of keys to draw, from a sample; 0 = as many as the method allows (default 0)",
    )
    add(
        "--seed",
        metavar="N",
        type=number_types.whole("seed", least=0, most=2**31),
        default=0,
        help="the random seed of samples and clusters (default 0)",
    )
    archive_options.add_archive(parser)
    archive_options.add_version(parser)
    whole_space.add_most_bytes(parser)


def run(options: argparse.Namespace) -> int:
    """Draw the space, and write the picture."""
    from headrace.cli.archive import drawing  # noqa: PLC0415 - not needed to list the verbs
    from headrace.similarity.layout import layout  # noqa: PLC0415 - as above

    out: Path = options.out or Path(f"{options.space}.png")
    drawing.check_file(out)
    given = None if options.labels is None else _read_labels(options.labels)
    with whole_space.progress_line() as progress:
        read = whole_space.read(options, progress)
        rows = whole_space.rows_of(read, "cosine")
        made = layout(rows, options.method, most=options.most, seed=options.seed, progress=progress)
        names = [read.keys[row] for row in made.rows.tolist()]
        labels = _clusters(options, rows, made) if given is None else _labels(given, names)
        picture = drawing.Picture(
            layout=made,
            labels=labels,
            names=names,
            named=drawing.to_name(made, labels, options.names),
            title=f"{options.space}, version {read.version}",
            subtitle=_subtitle(options, read, made),
        )
        progress("drawing", 0, 1)
        drawing.draw(picture, out)
    if options.json:
        said = {"space": options.space, "version": read.version, "file": str(out), "method": options.method}
        counts = {"key_count": len(read.keys), "drawn": len(made.rows), "explained": made.explained}
        common.print_json({**said, **counts})
    else:
        print(f"wrote {out}: {picture.subtitle}")
    return common.DONE


def _subtitle(options: argparse.Namespace, read: Whole, made: Layout) -> str:
    drawn = "" if len(made.rows) == len(read.keys) else f"{len(made.rows):,} of "
    method = "t-SNE" if options.method == "tsne" else "principal components"
    return f"{drawn}{len(read.keys):,} vectors of {read.vectors.shape[1]} numbers, by {method}"


def _clusters(options: argparse.Namespace, rows: Rows, made: Layout) -> list[str]:
    from headrace.similarity.layout import clusters  # noqa: PLC0415 - not needed to list the verbs

    found = clusters(rows, made.rows, options.clusters, options.seed)
    return [f"cluster {number + 1}" for number in found.tolist()]


def _labels(given: dict[str, str], names: list[str]) -> list[str]:
    labels = [given.get(name, _NO_LABEL) for name in names]
    if all(label is _NO_LABEL for label in labels):
        raise ConfigError(f"--labels: it has none of the keys drawn, such as {names[0]!r}")
    return labels


def _read_labels(file: Path) -> dict[str, str]:
    with saying(f"--labels: {file} cannot be read"):
        size = file.stat().st_size
        if size > _MOST_LABEL_BYTES:
            raise ConfigError(f"--labels: {file}: expected at most {_MOST_LABEL_BYTES} bytes, got {size}")
        try:
            text = file.read_text("utf-8")
            lines = list(csv.reader(text.splitlines(keepends=True), strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(f"--labels: {file}: expected CSV in UTF-8: {error}") from error
    for number, line in enumerate(lines, 1):
        if line and len(line) != 2:
            raise ConfigError(f"--labels: {file}: line {number}: expected key,label, got {len(line)} cells")
    return {line[0]: line[1] for line in lines if line}
