"""What a click model is made of and how it learns: every setting with its default and its check."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from headrace.config.checks import told
from headrace.errors import ConfigError

Kind = Literal["lr", "fm", "fwfm", "ffm", "deepfm", "deepffm", "mdn"]
OptimizerKind = Literal["forgetting", "sgd", "adagrad", "ftrl", "adam", "lazy_adam"]

KINDS: tuple[Kind, ...] = get_args(Kind)
DEEP: tuple[Kind, ...] = ("deepfm", "deepffm", "mdn")
POOLED: tuple[Kind, ...] = ("deepfm", "mdn")
"""Kinds whose network has the fields' embeddings for its inputs."""

FIELD_AWARE: tuple[Kind, ...] = ("ffm", "deepffm")
"""Kinds whose values have an embedding for each other field."""

PAIRS_OF: dict[Kind, Kind] = {"deepfm": "fm", "deepffm": "ffm", "mdn": "fm"}
"""Of each deep kind the plain one that has the same pairs."""

OPTIMIZERS: tuple[OptimizerKind, ...] = get_args(OptimizerKind)


_MOST = 1e6  # kernels count in float32, where 1e300 is infinite


def _one_of(key: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key}: expected one of {', '.join(allowed)}, got {value!r}")


def _number(
    key: str,
    value: float,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    if not (-math.inf < value < math.inf and least <= value <= most and above < value < below):
        bounds = (("more than", above), ("at least", least), ("at most", most), ("less than", below))
        limits = [f"{words} {bound:g}" for words, bound in bounds if math.isfinite(bound)]
        raise ConfigError(f"{key}: expected a number, {' and '.join(limits)}, got {told(value)}")


class Optimizer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights move against their gradients; one for each group of weights.

    Attributes:
        kind: ``forgetting`` is Adagrad whose sums of squares forget, row by row as fast as the model's own
            errors say that the world turns (see ``headrace.ctr.learning.pace``), in batches at a fixed pace
            (``half_life_rows``); ``lazy_adam`` moves, and keeps moments, only of rows that a batch touched;
            ``adam`` moves all of them at each batch; ``ftrl`` is for linear weights only, and makes many of
            them zero.
        learning_rate: How far.
        initial: What Adagrad's sums of squares start from; where they forget, what is added to them.
        power: The power of that sum that divides a step: 0.5 is the square root.
        beta1: How much of Adam's first moment stays.
        beta2: How much of its second moment stays.
        epsilon: What Adam adds to the root of its second moment.
        l1: FTRL's pull to exactly zero.
        l2: The pull towards zero, as a factor of the weight in the gradient of rows that are touched; FTRL's
            own l2.
    """

    kind: OptimizerKind = "adagrad"
    learning_rate: float = 0.05
    initial: float = 1.0
    power: float = 0.5
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-7
    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        """Check each setting."""
        _one_of("optimizer.kind", self.kind, OPTIMIZERS)
        _number("optimizer.learning_rate", self.learning_rate, above=0.0, most=_MOST)
        for name in ("initial", "l1", "l2"):
            _number(f"optimizer.{name}", getattr(self, name), least=0.0, most=_MOST)
        _number("optimizer.epsilon", self.epsilon, above=0.0, most=_MOST)
        _number("optimizer.power", self.power, least=0.0, most=1.0)
        for name in ("beta1", "beta2"):
            _number(f"optimizer.{name}", getattr(self, name), least=0.0, below=1.0)


LINEAR = Optimizer(kind="forgetting", learning_rate=0.2)
"""How linear weights of an lr and an fm forget, where nothing else is said; the rate is for six fields."""

EMBEDDINGS = Optimizer(kind="forgetting", learning_rate=0.1, initial=4.0)
"""How embeddings do."""

IN_BATCHES = Optimizer(kind="forgetting", learning_rate=0.1)
"""How both do in a deepfm, which learns in batches."""

_STARTS = 2.0  # what the sums of kinds start from whose embeddings meet others by fields
_BY_FIELDS = 0.07  # how far embeddings move in batches that meet others by fields


def forgetting_of(kind: str) -> tuple[Optimizer, Optimizer]:
    """How linear weights and embeddings of a kind forget, where nothing else is said."""
    replaced = msgspec.structs.replace
    if kind in POOLED:
        return IN_BATCHES, IN_BATCHES
    if kind == "deepffm":
        return IN_BATCHES, replaced(IN_BATCHES, learning_rate=_BY_FIELDS)
    if kind not in ("fwfm", "ffm"):
        return LINEAR, EMBEDDINGS
    return replaced(LINEAR, initial=_STARTS), replaced(EMBEDDINGS, initial=_STARTS)


_UNSAID = Optimizer()  # by its identity: nothing was said of how a group learns


class Interaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pair of single-valued categorical fields whose every combination has a linear weight of its own.

    Attributes:
        fields: The two fields' names.
        buckets: Over how many weights the combinations are spread.
    """

    fields: tuple[str, str]
    buckets: int = 2**20

    def __post_init__(self) -> None:
        """Check that there is room."""
        if not 2 <= self.buckets <= 2**31:
            raise ConfigError(f"interactions: buckets: expected 2 to {2**31}, got {self.buckets}")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A click model.

    Where nothing is said of how linear weights and embeddings learn, they forget (``forgetting_of``; what was
    measured is in decision 0016). Once anything is said of either, what is not said is Adagrad's.

    The other defaults are those that were best on generated clicks (deepfm, 600,000 rows, the logloss of the
    last 200,000, 0.403 at best). The network's Adam was better at 0.001 than at 0.003. Batches of 512 rows
    came to 0.439 where these came to 0.440, at 7 % fewer rows a second.

    Attributes:
        kind: ``lr`` logistic regression; ``fm`` factorization machine; ``fwfm`` field-weighted FM; ``ffm``
            field-aware FM; ``deepfm`` FM and a network over the embeddings; ``deepffm`` FFM and a network
            over its interactions; ``mdn`` a mixture density network: a deepfm that gives a distribution of
            the click rate, and knows vectors that are missing.
        factors: The numbers in an embedding (for ffm and deepffm: for each other field).
        hidden: The widths of the network's layers.
        interactions: Pairs of fields with linear weights of their own.
        linear: How linear weights, those of dense features and the bias learn.
        embeddings: How embeddings, and fwfm's weights of field pairs, learn.
        network: How the network learns.
        batch_rows: How many rows are learnt from at a time; the models without a network, but with Adam,
            learn from each row before they predict the next, whatever the batch.
        half_life_rows: After how many rows what was added to sums of squares counts half, where they forget
            and learn in batches; what learns row by row measures how fast it forgets.
        initial_scale: The standard deviation of fresh embeddings.
        seed: What fresh weights are drawn from.
        threads: How many threads learn at once, without locks; more than one is not repeatable to the bit.
        components: How many Beta distributions an mdn mixes.
    """

    kind: Kind = "deepfm"
    factors: int = 8
    hidden: tuple[int, ...] = (128, 64)
    interactions: tuple[Interaction, ...] = ()
    linear: Optimizer = msgspec.field(default_factory=lambda: _UNSAID)
    embeddings: Optimizer = msgspec.field(default_factory=lambda: _UNSAID)
    network: Optimizer = msgspec.field(default_factory=lambda: Optimizer(kind="adam", learning_rate=0.001))
    batch_rows: int = 1024
    half_life_rows: int = 200_000
    initial_scale: float = 0.01
    seed: int = 0
    threads: int = 1
    components: int = 3

    def __post_init__(self) -> None:
        """Fill in how weights learn, check each setting, and that they fit together."""
        self._fill_in()
        _one_of("kind", self.kind, KINDS)
        _number("factors", self.factors, least=1, most=1024)
        _number("batch_rows", self.batch_rows, least=1, most=2**20)
        _number("half_life_rows", self.half_life_rows, least=1, most=2**40)
        _number("threads", self.threads, least=1, most=256)
        _number("components", self.components, least=1, most=64)
        _number("seed", self.seed, least=0, most=2**63 - 1)
        _number("initial_scale", self.initial_scale, least=0.0, most=_MOST)
        if self.kind in DEEP and not self.hidden:
            raise ConfigError(f"hidden: expected at least one layer for {self.kind}, got none")
        for width in self.hidden:
            _number("hidden", width, least=1, most=65536)
        for name in ("embeddings", "network"):
            if getattr(self, name).kind == "ftrl":
                raise ConfigError(
                    f"{name}.kind: ftrl is for linear weights only; take forgetting, adagrad or lazy_adam"
                )

    def _fill_in(self) -> None:
        """Put optimizers where none were said; other objects than the marker, so that they stay in copies."""
        unsaid = [name for name in ("linear", "embeddings") if getattr(self, name) is _UNSAID]
        both = forgetting_of(self.kind) if len(unsaid) == 2 else (Optimizer(), Optimizer())
        for name, filled in zip(("linear", "embeddings"), both, strict=True):
            if name in unsaid:
                msgspec.structs.force_setattr(self, name, filled)

    @property
    def online(self) -> bool:
        """Whether each row is learnt from before the next is predicted, in one pass over a batch.

        The moments of Adam belong to batches, and a network is only fast in batches; all else is online.
        """
        return self.kind not in DEEP and not any(
            one.kind in ("adam", "lazy_adam") for one in (self.linear, self.embeddings)
        )

    @property
    def heads(self) -> int:
        """How many numbers the network gives for a row: one, or what a mixture of Betas is made of."""
        return 1 + 3 * self.components if self.kind == "mdn" else 1

    @property
    def halves(self) -> bool:
        """Whether sums of squares forget at a fixed pace (``half_life_rows``)."""
        kinds = (self.linear.kind, self.embeddings.kind, self.network.kind)
        return not self.online and "forgetting" in kinds
