"""``headrace versions DIR[/NAME[/N]]``: list versions on disk, and the pinned ones."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.base.files import saying
from headrace.base.terminal import size, table
from headrace.cli import common, models
from headrace.versions.control_record import Pin, parse_record
from headrace.versions.pins_and_holds import VersionOnDisk, list_versions, read_control


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="versions",
            help="show the versions of models on disk",
            description="Show the versions of one model, or of all of them, and which version is pinned.",
            examples="examples:\n  headrace versions models\n  headrace versions models/ctr --json",
            failure="a directory cannot be read",
            run=run,
        ),
    )
    parser.add_argument(
        "models", metavar=models.ANY, type=Path, help="a directory of models, one of them, or one version"
    )


def run(options: argparse.Namespace) -> int:
    """Print one line per version, newest first."""
    with saying(f"{options.models} cannot be listed"):
        found = [_Model.read(model, number) for model, number in models.find_models(options.models)]
    if options.json:
        common.print_json({"models": [one.as_object() for one in found]})
    else:
        for one in found:
            one.show()
    return common.DONE


@dataclass(frozen=True)
class _Model:
    """The displayed state of one model.

    Attributes:
        name: The model's name.
        pin: The model's pin; None without one.
        problem: Why the control record cannot be read; "" if it can.
        versions: The versions, newest first.
    """

    name: str
    pin: Pin | None
    problem: str
    versions: list[VersionOnDisk]

    @classmethod
    def read(cls, model: Path, number: int | None) -> _Model:
        """Read a model's state; a broken record hides neither other models nor this one's versions."""
        record, problem = parse_record(None), ""
        try:
            record = read_control(model)
        except ConfigError as error:
            problem = error.message
        versions = [one for one in list_versions(model, record) if number in (None, one.version)]
        return cls(models.name_of(model), record.pin, problem, versions)

    def as_object(self) -> dict[str, object]:
        """Return the state as an object for JSON."""
        return {
            "name": self.name,
            "pinned": None if self.pin is None else self.pin.number,
            "pin": None
            if self.pin is None
            else {name: getattr(self.pin, name) for name in ("at", "by", "why")},
            "problem": self.problem or None,
            "versions": [
                {
                    "version": one.version,
                    "size_bytes": one.size_bytes,
                    "created": one.created or None,
                    "pinned": one.pinned,
                    "held_by": list(one.holders),
                    "problem": one.problem or None,
                }
                for one in self.versions
            ],
        }

    def show(self) -> None:
        """Print the state for people."""
        told = self.problem if self.pin is None else _told(self.pin)
        print(table([(self.name, f"({told})" if told else "")]))
        rows = [
            (
                str(found.version),
                size(found.size_bytes),
                found.created,
                "pinned" if found.pinned else "",
                f"held by {', '.join(found.holders)}" if found.holders else "",
                found.problem,
            )
            for found in self.versions
        ]
        if rows:
            print(table(rows, right=(0, 1), indent="  "))


def _told(pin: Pin) -> str:
    by = f" by {pin.by}" if pin.by else ""
    at = f", {pin.at}" if pin.at else ""
    return f"pinned to {pin.number}{by}{at}{f': {pin.why}' if pin.why else ''}"
