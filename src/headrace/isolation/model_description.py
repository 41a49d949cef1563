"""The setup sent to a model's process, and the description of the model that it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from headrace.base.tensors import BY_NUMPY, STRING, Array, Tensors
from headrace.model.servable import Servable, Signature, TensorSpec, has_files, takes_packed
from headrace.runtimes.options import Option, RuntimeOptions, SignatureSettings


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The version to load: the serializable part of ``RuntimeOptions``, and settings of the process.

    Attributes:
        path: The version directory.
        memory_bytes: Memory above which the process is replaced; 0 for no limit.
        log_level: Level of the root logger.
        gently: Whether loading takes only a small share of the processor.
        Others: As in ``RuntimeOptions``.
    """

    path: str
    kind: str
    threads: int
    trusted: tuple[str, ...]
    is_verified: bool
    allow_code: bool
    options: dict[str, Option]
    signature: SignatureSettings
    checksums: dict[str, str] | None
    memory_bytes: int
    log_level: int
    gently: bool


class _Spec(msgspec.Struct, frozen=True, array_like=True):
    name: str
    dtype: str
    shape: tuple[int | None, ...]
    context: bool
    absent: int | float | str | None  # JSON has no NaN and no infinity: they are texts
    shorter: bool


class _Way(msgspec.Struct, frozen=True):
    name: str
    inputs: tuple[_Spec, ...]
    outputs: tuple[_Spec, ...]
    kind: Literal["predict", "classify", "regress"]
    rows: int | None
    examples: bool


class ModelDescription(msgspec.Struct, frozen=True):
    """Serializable description of a Servable.

    Attributes:
        platform: The Servable's platform.
        takes_packed: Whether the Servable takes packed texts.
        has_files: Whether users can put files beside the model.
        metadata: The Servable's metadata; empty if it has none.
        ways: The Servable's signatures.
    """

    platform: str
    takes_packed: bool
    has_files: bool
    metadata: dict[str, str]
    ways: tuple[_Way, ...]


def describe(servable: Servable) -> tuple[str, Tensors]:
    """Return a Servable's description as JSON, and the sample rows of its signatures."""
    signatures = servable.signatures.values()
    said = ModelDescription(
        servable.platform,
        takes_packed(servable),
        has_files(servable),
        dict(getattr(servable, "metadata", {})),
        tuple(_way(one) for one in signatures),
    )
    samples = {
        f"{number}/{name}": array
        for number, one in enumerate(signatures)
        for name, array in (one.sample or {}).items()
    }
    return msgspec.json.encode(said).decode(), samples


def described(text: str, samples: Tensors) -> tuple[ModelDescription, Mapping[str, Signature]]:
    """Decode the result of ``describe`` into the description and the signatures.

    Raises:
        ValueError: The text is not a description.
        KeyError: It names an unknown dtype.
    """
    found = msgspec.json.decode(text, type=ModelDescription)
    return found, {way.name: _signature(way, number, samples) for number, way in enumerate(found.ways)}


def options_of(setup: Setup) -> RuntimeOptions:
    """Return the options in a setup, without those that only the process itself can add."""
    return RuntimeOptions(
        kind=setup.kind,
        threads=setup.threads,
        trusted=setup.trusted,
        is_verified=setup.is_verified,
        allow_code=setup.allow_code,
        options=setup.options,
        signature=setup.signature,
        checksums=setup.checksums,
    )


def _way(signature: Signature) -> _Way:
    inputs, outputs = (
        tuple(
            _Spec(one.name, one.dtype.str, one.shape, one.context, _said(one.absent), one.shorter)
            for one in specs
        )
        for specs in (signature.inputs, signature.outputs)
    )
    return _Way(signature.name, inputs, outputs, signature.kind, signature.rows, signature.examples)


def _signature(way: _Way, number: int, samples: Tensors) -> Signature:
    prefix = f"{number}/"
    sample: dict[str, Array] = {
        name.removeprefix(prefix): array for name, array in samples.items() if name.startswith(prefix)
    }
    return Signature(
        way.name,
        tuple(map(_spec, way.inputs)),
        tuple(map(_spec, way.outputs)),
        kind=way.kind,
        rows=way.rows,
        examples=way.examples,
        sample=sample or None,
    )


def _said(absent: float | str | None) -> float | str | None:
    return str(absent) if isinstance(absent, float) and not math.isfinite(absent) else absent


def _spec(said: _Spec) -> TensorSpec:
    dtype, absent = BY_NUMPY[said.dtype], said.absent
    if isinstance(absent, str) and dtype != STRING:
        absent = float(absent)
    return TensorSpec(said.name, dtype, said.shape, said.context, absent, said.shorter)
