"""What every runtime is told about the version it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from headrace.errors import NotLoadable
from headrace.servable import Kind
from headrace.tensors import Tensors

ResultT = TypeVar("ResultT")

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


class RunGently(Protocol):
    """Runs a part of loading so that it disturbs requests least."""

    def __call__(self, call: Callable[[], ResultT], /) -> ResultT:
        """Give the call's result."""


def at_once(call: Callable[[], ResultT]) -> ResultT:
    """Run a part of loading where there are no requests to disturb."""
    return call()


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
        checksums: The SHA-256 of the version's files, by path below its directory, as its manifest lists
            them; None without a manifest.
        call: Calls another model by name, from a thread that may block; None where there are no other models.
        native: Runs the native part of loading, if that lets go of Python's lock; perhaps twice side by side.
        share: Runs loading that holds Python's lock.
    """

    kind: str = ""
    threads: int = 1
    trusted: tuple[str, ...] = ()
    allow_code: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)
    signature: SignatureSettings = field(default_factory=SignatureSettings)
    checksums: Mapping[str, str] | None = None
    call: Callable[[str, Tensors], Tensors] | None = None
    native: RunGently = at_once
    share: RunGently = at_once

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
                raise NotLoadable(f"runtime.options.{name}: unknown; this runtime has {there}")
            if type(value) is not wanted:
                raise NotLoadable(f"runtime.options.{name}: expected {wanted.__name__}, got {value!r}")
