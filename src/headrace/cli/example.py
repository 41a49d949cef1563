"""``headrace example DIR``: write a small example model to try the server with."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace import example
from headrace.cli import common, models


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="example",
            help="write a small example model",
            description="Write DIR/half_plus_two/1/model.onnx, which answers y = x / 2 + 2.",
            examples="example:\n  headrace example models && headrace serve models",
            failure="the model exists already",
            run=run,
        ),
    )
    parser.add_argument(
        "directory",
        metavar=models.DIRECTORY,
        type=Path,
        help="the directory of models; created if it is missing",
    )


def run(options: argparse.Namespace) -> int:
    """Write the model, and print the next step."""
    written = example.write(options.directory)
    if options.json:
        common.print_json({"model": str(written), "version": 1})
    else:
        print(f"wrote {written}\nnow: headrace serve {options.directory}")
    return common.DONE
