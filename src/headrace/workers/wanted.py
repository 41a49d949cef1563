"""What is wanted, from the one process that looks at the disk to all that serve."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.lifecycle.wanted import Want, Wanted
from headrace.workers import budgets
from headrace.workers.messages import WantedTold, Wants


def told(models: Mapping[str, Wanted], unusable: Mapping[str, str], workers: int) -> Wants:
    """What is wanted of one worker, as a message.

    Args:
        models: What is wanted of each model.
        unusable: What cannot be used, by name, and why.
        workers: How many divide what the settings of models grant.
    """
    return Wants(
        {
            name: WantedTold(
                versions=dict(one.versions),
                config=budgets.of_model(one.config, workers),
                labels=dict(one.labels),
                fingerprints={number: _as_number(found) for number, found in one.fingerprints.items()},
                problem=one.problem,
            )
            for name, one in models.items()
        },
        dict(unusable),
    )


def _as_number(fingerprint: object) -> int | None:
    return fingerprint if fingerprint is None or isinstance(fingerprint, int) else hash(fingerprint)


class ToldSource:
    """The Source of a worker: what its supervisor says is wanted. Serving thread only."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._want: Want | None = None
        self._last: Wants | None = None

    def made_for(self, want: Want) -> ToldSource:
        """Take whom to tell."""
        self._want = want
        return self

    def start(self) -> None:
        """Say what was told so far, and from now on all that comes."""
        if self._last is not None:
            self.take(self._last)

    def stop(self) -> None:
        """Say nothing more."""
        self._want = None

    def take(self, wants: Wants) -> None:
        """The supervisor says what is wanted."""
        self._last = wants
        if self._want is not None:
            self._want(
                {
                    name: Wanted(one.versions, one.config, one.labels, one.fingerprints, one.problem)
                    for name, one in wants.models.items()
                },
                wants.unusable,
            )
