"""Which versions of the models may answer at a moment: pure, told what was done and what was seen."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

SERVED = 2
"""How many versions of a model are served: its settings' ``count``."""


@dataclass(frozen=True)
class Shelf:
    """The versions of one model on disk.

    Attributes:
        good: Those that can be loaded.
        damaged: Those that cannot.
        pin: Above which none is served; None for no pin.
    """

    good: frozenset[int] = frozenset()
    damaged: frozenset[int] = frozenset()
    pin: int | None = None

    @property
    def serving(self) -> frozenset[int]:
        """Those that are served when everything has come to rest."""
        visible = sorted(one for one in self.good | self.damaged if self.pin is None or one <= self.pin)
        return frozenset(visible[-SERVED:]) - self.damaged

    @property
    def default(self) -> int:
        """The one that answers then."""
        return max(self.serving)

    @property
    def next(self) -> int:
        """A number that was never used, as long as the highest one stays on the shelf."""
        return max(self.good | self.damaged, default=0) + 1


@dataclass
class Standing:
    """What is known of one model in one server.

    Attributes:
        until: Versions that may be the default one, and until when they may have been.
        served: Those that are served for sure; empty while something changes.
        changes: How often something began to change.
    """

    until: dict[int, float] = field(default_factory=dict)
    served: frozenset[int] = frozenset()
    changes: int = 0

    def change(self, may_answer: Collection[int]) -> None:
        """Something is about to change: from now on these may answer, too."""
        self.changes += 1
        self.served = frozenset()
        self.until |= dict.fromkeys(may_answer, math.inf)

    def settle(self, shelf: Shelf, now: float) -> None:
        """The server was seen to serve what it shall: no other version answers what is sent from now on."""
        self.served = shelf.serving
        self.until = {
            version: math.inf if version == shelf.default else min(until, now)
            for version, until in self.until.items()
        }

    def allowed(self, sent: float) -> frozenset[int]:
        """The versions that may answer a request that was sent then, and names none."""
        return frozenset(version for version, until in self.until.items() if until >= sent)


def is_at_rest(states: dict[int, str], shelf: Shelf) -> bool:
    """Whether a server's states of a model's versions are what they come to.

    Args:
        states: By version, in TensorFlow Serving's words; what is gone may be missing.
        shelf: What is on disk.
    """
    available = {version for version, state in states.items() if state == "AVAILABLE"}
    moving = {state for state in states.values() if state in ("LOADING", "UNLOADING")}
    return available == shelf.serving and not moving
