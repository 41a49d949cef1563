"""Pass the wanted state from the supervisor, which scans the disk, to the workers."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.lifecycle.desired_state import Want, Wanted
from headrace.workers import worker_shares
from headrace.workers.messages import WantedTold, Wants


def told(models: Mapping[str, Wanted], unusable: Mapping[str, str], workers: int) -> Wants:
    """Return the message with a worker's wanted state.

    Args:
        models: Wanted state by model name.
        unusable: Names that cannot be used as models, with the reasons.
        workers: Number of workers, among which the models' cache sizes are divided.
    """
    return Wants(
        {
            name: WantedTold(
                versions=dict(one.versions),
                config=worker_shares.of_model(one.config, workers),
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
    """The Source of a worker, fed by its supervisor. Serving thread only."""

    def __init__(self) -> None:
        """Create the Source without a wanted state."""
        self._want: Want | None = None
        self._last: Wants | None = None

    def made_for(self, want: Want) -> ToldSource:
        """Set the callback for the wanted state, and return the Source."""
        self._want = want
        return self

    def start(self) -> None:
        """Report the last wanted state, if there is one."""
        if self._last is not None:
            self.take(self._last)

    def stop(self) -> None:
        """Stop reporting."""
        self._want = None

    def take(self, wants: Wants) -> None:
        """Store and report the supervisor's message."""
        self._last = wants
        if self._want is not None:
            self._want(
                {
                    name: Wanted(one.versions, one.config, one.labels, one.fingerprints, one.problem)
                    for name, one in wants.models.items()
                },
                wants.unusable,
            )
