"""LiteRT (TensorFlow Lite) models, ``model.tflite``, on the CPU.

Inputs and outputs are those of the model's signature ``serving_default``, of its only one, or of the one that
the option ``signature`` names. A model without signatures has the names of its tensors. Quantized inputs and
outputs keep their integers. Needs the extra ``litert``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from headrace.base.errors import LoadError, ModelError, NotLoadable, listed
from headrace.base.tensors import BY_DTYPE, STRING, Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.runtimes.options import RuntimeOptions

_Details = Mapping[str, Any]
_ANY = -1


def load(file: Path, options: RuntimeOptions) -> LitertServable:
    """Load a model.

    Args:
        file: A file of LiteRT.
        options: The operator's settings.

    Raises:
        LoadError: LiteRT refuses the file, or the first axis of an input or output is not rows.
    """
    options.check_known({"signature": str})
    try:
        content = file.read_bytes()
        first = _Instance(content, options)
        servable = LitertServable(content, first, options)
        servable.predict(_zeros(servable.signatures[DEFAULT_SIGNATURE]))
    except OSError as error:
        raise LoadError(f"cannot read {file.name}: {error.strerror}") from error
    except (ValueError, RuntimeError) as error:  # the boundary to LiteRT, which raises these
        said = " ".join(str(error).split())
        raise LoadError(f"LiteRT cannot load {file.name}: {said}") from error
    except ModelError as error:
        raise LoadError(f"LiteRT cannot compute {file.name}: {error.message}") from error
    return servable


class LitertServable:
    """A model, with one interpreter per concurrent call."""

    platform = "litert"
    is_native = True

    def __init__(self, content: bytes, first: _Instance, options: RuntimeOptions) -> None:
        """Describe the model.

        Args:
            content: The file's contents, which all interpreters read.
            first: An interpreter of it.
            options: The operator's settings.

        Raises:
            NotLoadable: A tensor has no rows, or a type that no request or answer can carry.
        """
        self._content = content
        self._options = options
        self._idle = deque([first])
        inputs = tuple(_spec("input", name, details) for name, details in first.inputs.items())
        outputs = tuple(_spec("output", name, details) for name, details in first.outputs.items())
        signature = Signature(
            DEFAULT_SIGNATURE,
            inputs,
            outputs,
            kind=options.signature.kind,
            rows=_fixed_rows(first.inputs),
        )
        self.signatures: Mapping[str, Signature] = {signature.name: signature}

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict a whole batch.

        Args:
            inputs: Every input, checked.
            signature: There is only the default one.

        Raises:
            ModelError: LiteRT failed.
        """
        try:
            instance = self._idle.pop()  # an interpreter computes one batch at a time
        except IndexError:
            instance = _Instance(self._content, self._options)
        try:
            outputs = instance.predict(inputs)
        except (ValueError, RuntimeError) as error:  # the boundary to LiteRT, which raises these
            raise ModelError(f"the model failed: {' '.join(str(error).split())}") from error
        self._idle.append(instance)  # not after a failure, which may leave it half resized
        return outputs

    def close(self) -> None:
        """Free the interpreters."""
        self._idle.clear()


class _Instance:
    """An interpreter, and the shapes that it is prepared for.

    Attributes:
        inputs: LiteRT's details of the inputs, by name.
        outputs: Likewise of the outputs.
    """

    def __init__(self, content: bytes, options: RuntimeOptions) -> None:
        self._interpreter = Interpreter(model_content=content, num_threads=options.threads)
        chosen = _signature(self._interpreter.get_signature_list(), str(options.options.get("signature", "")))
        if chosen:
            runner = self._interpreter.get_signature_runner(chosen)
            self.inputs: dict[str, _Details] = dict(runner.get_input_details())
            self.outputs: dict[str, _Details] = dict(runner.get_output_details())
        else:
            self.inputs = {one["name"]: one for one in self._interpreter.get_input_details()}
            self.outputs = {one["name"]: one for one in self._interpreter.get_output_details()}
        self._shapes: list[tuple[int, ...]] = []

    def predict(self, inputs: Tensors) -> Tensors:
        shapes = [inputs[name].shape for name in self.inputs]
        if shapes != self._shapes:
            self._shapes = []
            for details, shape in zip(self.inputs.values(), shapes, strict=True):
                if tuple(details["shape_signature"]) != shape:
                    self._interpreter.resize_tensor_input(details["index"], shape)
            self._interpreter.allocate_tensors()
            self._shapes = shapes
        for name, details in self.inputs.items():
            self._interpreter.set_tensor(details["index"], inputs[name])
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(one["index"]) for name, one in self.outputs.items()}


def _signature(there: Mapping[str, object], wanted: str) -> str:
    if wanted and wanted not in there:
        raise NotLoadable(
            f"runtime.options.signature: the model has {listed(there) or 'none'}, not {wanted!r}"
        )
    if wanted or not there:
        return wanted
    if DEFAULT_SIGNATURE in there or len(there) == 1:
        return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in there else next(iter(there))
    raise NotLoadable(f"the model has the signatures {listed(there)}; choose one: runtime.options.signature")


def _spec(side: str, name: str, details: _Details) -> TensorSpec:
    dtype = STRING if details["dtype"] in (np.bytes_, np.str_) else np.dtype(details["dtype"])
    if dtype not in BY_DTYPE:
        carrier = "request" if side == "input" else "answer"
        raise NotLoadable(f"{side} {name!r} is {dtype}, which no {carrier} can carry")
    shape = tuple(details["shape_signature"])
    if not shape:
        raise NotLoadable(f"{side} {name!r} has no axes, but the first axis must be rows")
    return TensorSpec(name, dtype, tuple(None if size == _ANY else int(size) for size in shape[1:]))


def _fixed_rows(inputs: Mapping[str, _Details]) -> int | None:
    fixed = {int(one["shape_signature"][0]) for one in inputs.values()} - {_ANY}
    if len(fixed) > 1:
        raise NotLoadable("the inputs have different fixed first axes, which cannot all be rows")
    return next(iter(fixed), None)


def _zeros(signature: Signature) -> dict[str, Array]:
    rows = signature.rows or 1
    return {
        spec.name: np.full(
            (rows, *(size or 1 for size in spec.shape)), b"" if spec.dtype == STRING else 0, spec.dtype
        )
        for spec in signature.inputs
    }
