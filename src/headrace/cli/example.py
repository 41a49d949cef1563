"""``headrace example DIR``: write a small example model to try the server with."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace import example


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "example",
        help="write a small example model",
        description="Write DIR/half_plus_two/1/model.onnx, which answers y = x / 2 + 2.",
        epilog="example:\n  headrace example models && headrace serve models",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory", metavar="DIR", type=Path, help="the directory of models; made if it is missing"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the model and say how to go on."""
    written = example.write(options.directory)
    print(f"wrote {written}\nnow: headrace serve {options.directory}")
    return 0
