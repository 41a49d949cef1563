"""What happens in a soak, and when, and what is asked: pure functions of its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

PLAIN, WORKERS = "plain", "workers"
SERVERS = (PLAIN, WORKERS)
PROTOCOLS = ("TFS REST", "TFS gRPC", "OIP REST", "OIP REST binary", "OIP gRPC", "OIP stream")
ISOLATED = "echo"
MODELS = ("counter", "linear", "clicks", ISOLATED)

Kind = Literal[
    "stop",
    "kill worker",
    "kill server",
    "kill isolated",
    "kill keeper",
    "restart",
    "clock jump",
    "slow readers",
    "half requests",
    "cut connections",
    "single bytes",
    "publish",
    "rollback",
    "retire",
    "damage",
    "storm",
]
Aim = tuple[Kind, str]
"""What is done, and to which server or model."""


@dataclass(frozen=True)
class Strand:
    """Steps that come one after the other.

    Attributes:
        aims: What is dealt out, each once before one comes again.
        first: From when on, as a share of the soak.
        last: Until when.
        every_seconds: How far apart they are in a long soak; in a short one they are closer, so that each
            comes once if there is room.
    """

    aims: tuple[Aim, ...]
    first: float
    last: float
    every_seconds: float


DEADLY = Strand(
    (
        ("kill server", PLAIN),
        ("kill worker", WORKERS),
        ("restart", PLAIN),
        ("kill server", WORKERS),
        ("restart", WORKERS),
    ),
    first=0.08,
    last=0.5,
    every_seconds=25.0,
)
"""What ends processes whose memory is watched: in the first half only, so that they live for the other."""
HARSH = Strand(
    (
        ("stop", PLAIN),
        ("stop", WORKERS),
        ("kill isolated", PLAIN),
        ("kill isolated", WORKERS),
        ("kill keeper", WORKERS),
    ),
    first=0.05,
    last=0.9,
    every_seconds=12.0,
)
RUDE: tuple[Kind, ...] = ("slow readers", "half requests", "cut connections", "single bytes")
ABUSE = Strand(
    tuple((kind, name) for kind in RUDE for name in SERVERS), first=0.03, last=0.92, every_seconds=9.0
)
CHANGING: tuple[Kind, ...] = ("publish", "rollback", "damage", "retire", "storm")
CHANGES = Strand(
    tuple((kind, name) for kind in CHANGING for name in MODELS), first=0.03, last=0.9, every_seconds=5.0
)
CLOCK = Strand((("clock jump", PLAIN),), first=0.1, last=0.9, every_seconds=45.0)

_CLOSEST_SECONDS = 5.0
_ROWS = {1: 40, 2: 12, 7: 12, 32: 15, 100: 10, 333: 6, 1000: 5}
"""How many rows a request has, and how many requests of a hundred have so many."""
_FLAWS = ("no such model", "wrong shape", "no such input", "poison")
_FLAWED_SHARE = 0.03
_NUMBERED_SHARE = 0.15
_LONGEST_PAUSE_SECONDS = 0.6


@dataclass(frozen=True)
class Step:
    """One thing that is done to a server, or to a model's versions.

    Attributes:
        at_seconds: When, since the beginning.
        kind: What.
        target: The server; of a change of versions the model.
        seconds: How long it lasts, where it lasts.
        choice: A number to choose by: which worker, which kind of damage.
        until_seconds: A fault that has to wait for a recovery until then is left out: what is killed later
            does not live long enough to be judged.
    """

    at_seconds: float
    kind: Kind
    target: str
    seconds: float
    choice: int
    until_seconds: float


@dataclass(frozen=True)
class Draw:
    """What one client asks next.

    Attributes:
        model: Which model.
        rows: How many rows.
        numbered: Whether the request names a version.
        flaw: What is wrong with it; empty for a good one.
        pause_seconds: How long the client waits before it.
        form: A number to choose by between forms that a protocol has for the same question.
    """

    model: str
    rows: int
    numbered: bool
    flaw: str
    pause_seconds: float
    form: int


def planned(seed: int, seconds: float, *, clock: bool = False) -> tuple[Step, ...]:
    """All steps of a soak, in the order of their times.

    Args:
        seed: Another one gives other times, orders and choices.
        seconds: How long the soak is.
        clock: Whether the clock of a server can be made to jump.
    """
    chance = random.Random(f"plan {seed}")
    strands = (DEADLY, HARSH, ABUSE, CHANGES, *((CLOCK,) if clock else ()))
    steps = [step for strand in strands for step in _steps(strand, seconds, chance)]
    return tuple(sorted(steps, key=lambda step: step.at_seconds))


def _steps(strand: Strand, seconds: float, chance: random.Random) -> list[Step]:
    room = (strand.last - strand.first) * seconds
    many = int(max(1, room / strand.every_seconds, min(len(strand.aims), room / _CLOSEST_SECONDS)))
    left: list[Aim] = []
    steps = []
    for number in range(many):
        left = left or chance.sample(strand.aims, len(strand.aims))
        kind, target = left.pop()
        at = strand.first * seconds + room * (number + 0.8 * chance.random()) / many
        lasts = min(chance.uniform(0.4, 3.0), seconds / 40)
        choice, until = chance.randrange(1000), strand.last * seconds
        steps.append(Step(round(at, 3), kind, target, round(lasts, 3), choice, until))
    return steps


def drawn(seed: int, client: str, number: int) -> Draw:
    """The question with this number of one client.

    Args:
        seed: The soak's.
        client: The client's name.
        number: How many it has asked before.
    """
    chance = random.Random(f"{seed} {client} {number}")
    (rows,) = chance.choices(list(_ROWS), list(_ROWS.values()))
    return Draw(
        model=chance.choice(MODELS),
        rows=rows,
        numbered=chance.random() < _NUMBERED_SHARE,
        flaw=chance.choice(_FLAWS) if chance.random() < _FLAWED_SHARE else "",
        pause_seconds=round(_LONGEST_PAUSE_SECONDS * chance.random() ** 3, 4),
        form=chance.randrange(1000),
    )
