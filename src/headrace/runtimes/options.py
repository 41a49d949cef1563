"""What every runtime is told about the version it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.errors import LoadError
from headrace.servable import Kind
from headrace.tensors import Tensors

Option = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SignatureSettings:
    """What TensorFlow Serving's Classify and Regress make of a model's outputs.

    Attributes:
        kind: Which of them the model answers, besides Predict.
        scores: The output that holds the scores, or the regression's value; empty for the only one that can.
        classes: The output that holds the classes' names; empty for none.
        labels: The classes' names, where no output holds them.
    """

    kind: Kind = "predict"
    scores: str = ""
    classes: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """The operator's settings for loading one version.

    Attributes:
        kind: The runtime; empty to find it from the files.
        threads: How many threads one call may use.
        trusted: Type names that a skops file may hold beyond what skops trusts by itself.
        allow_code: Whether code from version directories may run.
        options: Settings of the runtime, listed in docs/runtimes.md.
        signature: What Classify and Regress make of the outputs.
        call: Calls another model by name, from a thread that may block; None where there are no other models.
    """

    kind: str = ""
    threads: int = 1
    trusted: tuple[str, ...] = ()
    allow_code: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)
    signature: SignatureSettings = field(default_factory=SignatureSettings)
    call: Callable[[str, Tensors], Tensors] | None = None

    def check_known(self, known: Mapping[str, type]) -> None:
        """Refuse options that a runtime does not have, or of another type than it wants.

        Args:
            known: The type of each option that the runtime has.

        Raises:
            LoadError: One is unknown, or of the wrong type.
        """
        for name, value in self.options.items():
            wanted = known.get(name)
            if wanted is None:
                there = ", ".join(sorted(known)) or "none"
                raise LoadError(f"runtime.options.{name}: unknown; this runtime has {there}")
            if type(value) is not wanted:
                raise LoadError(f"runtime.options.{name}: expected {wanted.__name__}, got {value!r}")
