"""``headrace rollback DIR/NAME[/N]``: pin a model to an older version, for running servers to follow."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.base.errors import InvalidRequest
from headrace.base.files import saying
from headrace.cli import auditing, common, models
from headrace.versions.layout import version_directories
from headrace.versions.pins_and_holds import pin, read_control, unpin

_EXAMPLES = """examples:
  headrace rollback models/ctr            to the version below the pinned or newest one
  headrace rollback models/ctr/3
  headrace rollback models/ctr --release
"""


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="rollback",
            help="pin a model to an older version, or release the pin",
            description="Pin a model to a version. Servers that watch the directory load it, warm it up, "
            "and move to it without losing a request. Newer versions wait until the pin is released.",
            examples=_EXAMPLES,
            failure="the pin cannot be written",
            run=run,
        ),
    )
    parser.add_argument(
        "model",
        metavar=models.VERSION,
        type=Path,
        help="the model, and the version to pin; by default the one below the pinned version, or below the "
        "newest",
    )
    parser.add_argument(
        "--release", action="store_true", help="remove the pin: the version policy decides again"
    )
    auditing.add_option(parser)
    parser.add_argument("--why", metavar="TEXT", default="", help="the reason, stored with the pin")


def run(options: argparse.Namespace) -> int:
    """Pin or unpin the model, and print the effect."""
    with saying(f"the pin of {options.model} cannot be changed"):
        model, number = models.find_model(options.model)
        if options.release and number is not None:
            raise InvalidRequest(
                f"expected a model without a version, because a model has one pin; leave /{number} out",
                field="--release",
            )
        if options.release:
            with auditing.audited(options, "unpin", model):
                unpin(model, why=options.why)
        else:
            number = _previous(model) if number is None else number
            with auditing.audited(options, "pin", model / str(number)):
                pin(model, number, why=options.why)
    name = models.name_of(model)
    if options.json:
        common.print_json({"model": name, "pinned": number})
    elif number is None:
        print(f"{name}: released; the version policy decides again")
    else:
        print(f"{name}: pinned to version {number}; `--release` removes the pin")
    return common.DONE


def _previous(model: Path) -> int:
    numbers = list(version_directories(model))
    pinned = read_control(model).pin
    present = pinned.number if pinned is not None else (numbers[-1] if numbers else 0)
    older = [number for number in numbers if number < present]
    if not numbers:
        raise InvalidRequest("the model has no versions", field=models.VERSION)
    if not older:
        raise InvalidRequest(
            f"there is no version before {present} to go back to; `headrace versions {model}` lists them",
            field=models.VERSION,
        )
    return older[-1]
