"""Settings of click models and of their learning, with defaults and checks."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from headrace.base.errors import ConfigError
from headrace.config.checks import told

Kind = Literal["lr", "fm", "fwfm", "ffm", "deepfm", "deepffm", "mdn"]
OptimizerKind = Literal["forgetting", "sgd", "adagrad", "ftrl", "adam", "lazy_adam"]

KINDS: tuple[Kind, ...] = get_args(Kind)
DEEP: tuple[Kind, ...] = ("deepfm", "deepffm", "mdn")
POOLED: tuple[Kind, ...] = ("deepfm", "mdn")
"""Kinds whose network takes the fields' embeddings as inputs."""

FIELD_AWARE: tuple[Kind, ...] = ("ffm", "deepffm")
"""Kinds in which a value has an embedding for each other field."""

PAIRS_OF: dict[Kind, Kind] = {"deepfm": "fm", "deepffm": "ffm", "mdn": "fm"}
"""The plain kind with the same pair terms, for each deep kind."""

OPTIMIZERS: tuple[OptimizerKind, ...] = get_args(OptimizerKind)


_MOST = 1e6  # kernels compute in float32, where 1e300 is infinite


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
    """Optimizer of one group of weights.

    Attributes:
        kind: The algorithm. ``forgetting`` is Adagrad with decaying sums of squares. Online models measure
            the rate of decay from their own errors (see ``headrace.ctr.learning.adagrad_decay``); models
            that learn in batches use a fixed rate (``half_life_rows``). ``lazy_adam`` updates only the rows
            that a batch touched, and their moments; ``adam`` updates all rows at each batch. ``ftrl`` is for
            linear weights only, and sets many of them to zero.
        learning_rate: The learning rate.
        initial: Initial value of Adagrad's and FTRL's sums of squares; with ``forgetting``, a constant added
            to the sum.
        power: Exponent of Adagrad's sum of squares in the divisor of a step, with or without decay; 0.5 is
            the square root.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        epsilon: Constant that Adam adds to the root of its second moment.
        l1: FTRL's L1 penalty.
        l2: L2 penalty: multiplied by the weight and added to the gradient of touched rows. With ``ftrl``,
            FTRL's own L2 penalty.
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
"""Default optimizer of the linear weights of lr and fm; the rate is scaled down for more than six fields."""

EMBEDDINGS = Optimizer(kind="forgetting", learning_rate=0.1, initial=4.0)
"""Default optimizer of the embeddings of fm."""

IN_BATCHES = Optimizer(kind="forgetting", learning_rate=0.1)
"""Default optimizer of deep kinds outside the network; deepffm's embeddings have another rate."""

_STARTS = 2.0  # default ``initial`` of fwfm and ffm
_BY_FIELDS = 0.07  # default learning rate of deepffm's embeddings


def forgetting_of(kind: str) -> tuple[Optimizer, Optimizer]:
    """Return a kind's default optimizers for linear weights and for embeddings."""
    replaced = msgspec.structs.replace
    if kind in POOLED:
        return IN_BATCHES, IN_BATCHES
    if kind == "deepffm":
        return IN_BATCHES, replaced(IN_BATCHES, learning_rate=_BY_FIELDS)
    if kind not in ("fwfm", "ffm"):
        return LINEAR, EMBEDDINGS
    return replaced(LINEAR, initial=_STARTS), replaced(EMBEDDINGS, initial=_STARTS)


_UNSAID = Optimizer()  # marks an optimizer that was not configured; compared by identity


class Interaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pair of single-valued categorical fields with a linear weight for each combination of values.

    Attributes:
        fields: Names of the two fields.
        buckets: Number of weights over which the combinations are hashed.
    """

    fields: tuple[str, str]
    buckets: int = 2**20

    def __post_init__(self) -> None:
        """Check the number of buckets."""
        if not 2 <= self.buckets <= 2**31:
            raise ConfigError(f"interactions: buckets: expected 2 to {2**31}, got {self.buckets}")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a click model.

    If neither ``linear`` nor ``embeddings`` is set, both default to ``forgetting`` (``forgetting_of``;
    decision 0016 has the measurements). If one of them is set, the other defaults to Adagrad.

    The other defaults were the best on generated clicks (deepfm, 600,000 rows, logloss of the last 200,000;
    the best possible was 0.403). Adam for the network was better at 0.001 than at 0.003. Batches of 512 rows
    reached 0.439 instead of 0.440, at 7 % fewer rows a second.

    Attributes:
        kind: ``lr`` logistic regression; ``fm`` factorization machine; ``fwfm`` field-weighted FM; ``ffm``
            field-aware FM; ``deepfm`` FM and a network over the embeddings; ``deepffm`` FFM and a network
            over its interactions; ``mdn`` a mixture density network: a deepfm that predicts a distribution of
            the click rate, and flags missing vectors.
        factors: Length of an embedding (for ffm and deepffm: for each other field).
        hidden: Widths of the network's hidden layers.
        interactions: Pairs of fields with linear weights of their own.
        linear: Optimizer of the linear weights, those of dense features and the bias.
        embeddings: Optimizer of the embeddings, and of fwfm's weights of field pairs.
        network: Optimizer of the network.
        batch_rows: Number of rows per batch. Models that have no network and do not use Adam learn from each
            row before they predict the next, whatever the batch.
        half_life_rows: Half-life, in rows, of contributions to decaying sums of squares, for models that
            learn in batches. Online models measure the rate of decay.
        initial_scale: Standard deviation of fresh embeddings.
        seed: Random seed of fresh weights.
        threads: Number of threads that learn at once, without locks; with more than one, results are not
            reproducible to the bit.
        components: Number of Beta distributions in an mdn's mixture.
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
        """Fill in default optimizers, and check each setting and their combination."""
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
                    f"{name}.kind: ftrl is for linear weights only; use forgetting, adagrad or lazy_adam"
                )

    def _fill_in(self) -> None:
        """Replace unset optimizers with defaults, never with the marker itself, so that copies keep them."""
        unsaid = [name for name in ("linear", "embeddings") if getattr(self, name) is _UNSAID]
        both = forgetting_of(self.kind) if len(unsaid) == 2 else (Optimizer(), Optimizer())
        for name, filled in zip(("linear", "embeddings"), both, strict=True):
            if name in unsaid:
                msgspec.structs.force_setattr(self, name, filled)

    @property
    def online(self) -> bool:
        """Whether the model learns from each row before it predicts the next, in one pass over a batch.

        Adam's moments are defined per batch, and a network is fast only in batches. All other models are
        online.
        """
        return self.kind not in DEEP and not any(
            one.kind in ("adam", "lazy_adam") for one in (self.linear, self.embeddings)
        )

    @property
    def heads(self) -> int:
        """Number of network outputs per row: one, or the parameters of an mdn's mixture of Betas."""
        return 1 + 3 * self.components if self.kind == "mdn" else 1

    @property
    def has_half_life(self) -> bool:
        """Whether sums of squares decay at a fixed rate (``half_life_rows``)."""
        kinds = (self.linear.kind, self.embeddings.kind, self.network.kind)
        return not self.online and "forgetting" in kinds
