"""Settings that each runtime receives with the version to load."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from headrace.base.errors import NotLoadable
from headrace.base.tensors import BY_OIP, Tensors
from headrace.model.servable import Kind

ResultT = TypeVar("ResultT")

Option = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SignatureSettings:
    """How TensorFlow Serving's Classify and Regress interpret a model's outputs.

    Attributes:
        kind: The method that the model supports besides Predict.
        scores: The output with the scores or the regression's value; empty if only one output can be it.
        classes: The output with the names of the classes; empty for none.
        labels: The names of the classes, if no output holds them.
    """

    kind: Kind = "predict"
    scores: str = ""
    classes: str = ""
    labels: tuple[str, ...] = ()


class RunGently(Protocol):
    """Runs a part of loading in a way that delays requests as little as possible."""

    def __call__(self, call: Callable[[], ResultT], /) -> ResultT:
        """Run the call and return its result."""


def at_once(call: Callable[[], ResultT]) -> ResultT:
    """Run a part of loading directly, where there are no requests to disturb."""
    return call()


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """The operator's settings for loading one version.

    Attributes:
        kind: The runtime; empty to infer it from the files.
        threads: Maximum number of threads per call.
        trusted: Type names that a skops file may contain besides those that skops trusts.
        is_verified: Whether the version's signature was verified, so that it may trust types itself.
        allow_code: Whether code from version directories may run.
        options: Settings of the runtime, listed in docs/runtimes.md.
        signature: How Classify and Regress interpret the outputs.
        checksums: The SHA-256 of the version's files, by path below its directory, as its manifest lists
            them; None without a manifest.
        call: Calls another model by name, from a thread that may block; None if there are no other models.
        call_async: The same from an event loop of any thread; None if calls cross a process.
        native: Runs a part of loading that releases the GIL; may run it twice at the same time.
        share: Runs a part of loading that holds the GIL.
    """

    kind: str = ""
    threads: int = 1
    trusted: tuple[str, ...] = ()
    is_verified: bool = False
    allow_code: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)
    signature: SignatureSettings = field(default_factory=SignatureSettings)
    checksums: Mapping[str, str] | None = None
    call: Callable[[str, Tensors], Tensors] | None = None
    call_async: Callable[[str, Tensors], Awaitable[Tensors]] | None = None
    native: RunGently = at_once
    share: RunGently = at_once

    @property
    def floats(self) -> np.dtype[Any]:
        """The dtype of numeric inputs, from the option ``datatype``: FP64 by default, or FP32.

        Raises:
            NotLoadable: It names another one.
        """
        datatype = str(self.options.get("datatype", "FP64"))
        if datatype not in ("FP32", "FP64"):
            raise NotLoadable(f"runtime.options.datatype: expected FP32 or FP64, got {datatype!r}")
        return BY_OIP[datatype].dtype

    def expect_code_allowed(self, problem: str) -> None:
        """Refuse a version that holds code, unless the operator allows that.

        Args:
            problem: Why it is refused, without a full stop.

        Raises:
            NotLoadable: Code from version directories may not run.
        """
        if not self.allow_code:
            raise NotLoadable(
                f"{problem}. If only people you trust can write to the models' directory, start the server "
                "with --allow-code, set allow_code = true in its configuration, or in Python pass "
                "allow_code=True to headrace.serve"
            )

    def check_known(self, known: Mapping[str, type]) -> None:
        """Refuse options that the runtime does not have, or whose type is wrong.

        Args:
            known: The type of each option of the runtime.

        Raises:
            LoadError: An option is unknown, or of the wrong type.
        """
        for name, value in self.options.items():
            wanted = known.get(name)
            if wanted is None:
                there = ", ".join(sorted(known)) or "none"
                raise NotLoadable(f"runtime.options.{name}: unknown; this runtime has {there}")
            if type(value) is not wanted:
                raise NotLoadable(f"runtime.options.{name}: expected {wanted.__name__}, got {value!r}")
