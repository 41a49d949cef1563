"""What a model's process is told to load, and what it says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from headrace.runtimes.options import Option, RuntimeOptions, SignatureSettings
from headrace.servable import Servable, Signature, TensorSpec, takes_packed
from headrace.tensors import BY_NUMPY, Array, Tensors


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be loaded: the part of ``RuntimeOptions`` that can travel, and what is the process's own.

    Attributes:
        path: The version directory.
        memory_bytes: What the model may take before its process is replaced; 0 for any.
        log_level: The least severe level that is logged.
        gently: Whether loading takes only a small share of the processor.
        Others: As in ``RuntimeOptions``.
    """

    path: str
    kind: str
    threads: int
    trusted: tuple[str, ...]
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
    absent: float | str | None
    shorter: bool


class _Way(msgspec.Struct, frozen=True):
    name: str
    inputs: tuple[_Spec, ...]
    outputs: tuple[_Spec, ...]
    kind: Literal["predict", "classify", "regress"]
    rows: int | None
    examples: bool


class Description(msgspec.Struct, frozen=True):
    """What is told of a Servable.

    Attributes:
        platform: As the Servable's.
        takes_packed: As the Servable's.
        explains: Whether it can explain itself.
        metadata: As the Servable's, if it has some.
        ways: Its signatures.
    """

    platform: str
    takes_packed: bool
    explains: bool
    metadata: dict[str, str]
    ways: tuple[_Way, ...]


def describe(servable: Servable) -> tuple[str, Tensors]:
    """A Servable in words, and the rows that its signatures give as samples."""
    signatures = servable.signatures.values()
    said = Description(
        servable.platform,
        takes_packed(servable),
        callable(getattr(servable, "explain", None)),
        dict(getattr(servable, "metadata", {})),
        tuple(_way(one) for one in signatures),
    )
    samples = {
        f"{number}/{name}": array
        for number, one in enumerate(signatures)
        for name, array in (one.sample or {}).items()
    }
    return msgspec.json.encode(said).decode(), samples


def described(text: str, samples: Tensors) -> tuple[Description, Mapping[str, Signature]]:
    """A Servable's description and signatures, of what ``describe`` has said.

    Raises:
        ValueError: It is no description.
        KeyError: It tells of a dtype that there is not.
    """
    found = msgspec.json.decode(text, type=Description)
    return found, {way.name: _signature(way, number, samples) for number, way in enumerate(found.ways)}


def options_of(setup: Setup) -> RuntimeOptions:
    """The options that a setup holds, without what only the process itself can add."""
    return RuntimeOptions(
        kind=setup.kind,
        threads=setup.threads,
        trusted=setup.trusted,
        allow_code=setup.allow_code,
        options=setup.options,
        signature=setup.signature,
        checksums=setup.checksums,
    )


def _way(signature: Signature) -> _Way:
    inputs, outputs = (
        tuple(
            _Spec(one.name, one.dtype.str, one.shape, one.context, one.absent, one.shorter) for one in specs
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


def _spec(said: _Spec) -> TensorSpec:
    return TensorSpec(said.name, BY_NUMPY[said.dtype], said.shape, said.context, said.absent, said.shorter)
