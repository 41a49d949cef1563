"""``headrace hold DIR/NAME/N``: protect a version from deletion, or release the hold."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.base.errors import InvalidRequest
from headrace.base.files import saying
from headrace.base.terminal import table
from headrace.cli import auditing, common, models
from headrace.versions.pins_and_holds import hold, let_go

_EXAMPLES = """examples:
  headrace hold models/ctr/17 --holder audit --why "a complaint"
  headrace hold models/ctr/17 --holder audit --release
"""

_HOLDER = "operator"


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="hold",
            help="keep a version from being deleted, or release it",
            description="Hold a version: trainers do not delete it, however old it is, until all holders "
            "have released it. Whether it is served does not change.",
            examples=_EXAMPLES,
            failure="the hold cannot be written",
            run=run,
        ),
    )
    parser.add_argument("model", metavar=models.NUMBERED_VERSION, type=Path, help="the model and the version")
    parser.add_argument(
        "--holder",
        metavar="NAME",
        default=_HOLDER,
        help=f"the holder's name; each holder has its own hold (default {_HOLDER})",
    )
    parser.add_argument(
        "--release",
        action="store_true",
        help="release the hold, which must exist; the version itself may be gone",
    )
    auditing.add_option(parser)
    parser.add_argument("--why", metavar="TEXT", default="", help="the reason, stored with the hold")


def run(options: argparse.Namespace) -> int:
    """Hold or release a version, and print its holders."""
    with saying(f"the holds on {options.model} cannot be changed"):
        model, number = models.find_model(options.model, there=not options.release)
        if number is None:
            raise InvalidRequest(
                "expected the number of a version, as in DIR/NAME/17", field=models.NUMBERED_VERSION
            )
        decide = let_go if options.release else hold
        action = "release-hold" if options.release else "hold"
        with auditing.audited(options, action, f"{model / str(number)} for {options.holder}"):
            record = decide(model, number, options.holder, why=options.why)
    name = models.name_of(model)
    holders = sorted(record.holders(number))
    if options.json:
        common.print_json({"model": name, "version": number, "held_by": holders})
    else:
        told = f"held by {', '.join(holders)}" if holders else "held by nobody"
        print(table([(f"{name}: version {number} is {told}",)]))
    return common.DONE
