"""PyTorch programs: ``model.pt2`` as ``torch.export.save`` writes it, and TorchScript, ``model.pt``.

Both kinds of files hold code: ``torch.export.load`` runs pickles in them, and TorchScript programs may use
files. They load only where code may run. Inputs and outputs of a ``.pt2`` are those of the exported program;
a ``.pt`` needs the option ``inputs``. Needs the extra ``torch``.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.base.errors import LoadError, ModelError, NotLoadable
from headrace.base.tensors import BY_DTYPE, BY_OIP, STRING, Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, Signature, TensorSpec
from headrace.runtimes.options import RuntimeOptions

_OPTIONS: dict[str, type] = {"inputs": str, "device": str}
_INPUTS_WAY_OUT = 'set runtime.options.inputs, such as "x FP32 [rows, 10]; ids INT64 [rows]"'


_TRIED = (2, 3)
"""Sizes of the open axes in two trial calls; an axis of an output that differs between them is open, too."""


class _Program(NamedTuple):
    """A program and its description.

    Attributes:
        run: The program; takes and returns tensors.
        positional: Names of the inputs that it takes by position, in order; the others are taken by name.
        inputs: Its inputs.
        rows: Number of rows that it takes; None for any.
    """

    run: Callable[..., Any]
    positional: Sequence[str]
    inputs: tuple[TensorSpec, ...]
    rows: int | None


def load(file: Path, options: RuntimeOptions) -> TorchServable:
    """Load a program.

    Args:
        file: A file of torch.export or TorchScript.
        options: The operator's settings; docs/runtimes.md lists the options.

    Raises:
        LoadError: Code is not allowed, PyTorch refuses the file, or it cannot predict rows.
    """
    options.check_known(_OPTIONS)
    options.expect_code_allowed(f"{file.name}: loading it runs code that is in the file")
    try:
        device = torch.device(str(options.options.get("device", "cpu")))
        torch.empty(0, device=device)
        program = _exported(file, device) if file.suffix == ".pt2" else _scripted(file, options, device)
        return TorchServable(program, device, options)
    except LoadError:
        raise
    except ModelError as error:
        raise LoadError(f"{file.name} cannot compute zeros: {error.message}") from error
    except Exception as error:  # the boundary to PyTorch, which raises errors of many kinds
        raise LoadError(f"PyTorch cannot load {file.name}: {_first_line(error)}") from error


class TorchServable:
    """A program of PyTorch."""

    platform = "pytorch"

    def __init__(self, program: _Program, device: torch.device, options: RuntimeOptions) -> None:
        """Describe a program.

        Args:
            program: The program.
            device: Where it computes.
            options: The operator's settings.

        Raises:
            NotLoadable: An output has no rows, or a type that no answer can carry.
            ModelError: It fails on zeros.
        """
        self._program = program
        self._device = device
        self._threads = options.threads
        outputs = self._described(program)
        signature = Signature(
            DEFAULT_SIGNATURE, program.inputs, outputs, kind=options.signature.kind, rows=program.rows
        )
        self.signatures: Mapping[str, Signature] = {signature.name: signature}

    def _described(self, program: _Program) -> tuple[TensorSpec, ...]:
        """Return the outputs, found by computing rows of zeros: two and three, or twice the fixed number.

        Other axes that are open also have the sizes two and three.
        """
        sizes = (program.rows, program.rows) if program.rows else _TRIED
        few, many = (
            self._predict(_zeros(program.inputs, rows, open_size))
            for rows, open_size in zip(sizes, _TRIED, strict=True)
        )
        outputs = []
        for name, one in few.items():
            other = many[name]
            if one.ndim == 0 or (len(one), len(other)) != sizes:
                raise NotLoadable(f"output {name!r} has no rows: its first axis must be that of the inputs")
            if one.dtype not in BY_DTYPE:
                raise NotLoadable(f"output {name!r} is {one.dtype}, which no answer can carry")
            shape = tuple(
                size if size == again else None
                for size, again in zip(one.shape[1:], other.shape[1:], strict=True)
            )
            outputs.append(TensorSpec(name, one.dtype, shape))
        return tuple(outputs)

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict a whole batch.

        Args:
            inputs: Every input, checked.
            signature: There is only the default one.

        Raises:
            ModelError: The program failed.
        """
        return self._predict(inputs)

    def _predict(self, inputs: Tensors) -> Tensors:
        if torch.get_num_threads() != self._threads:  # each thread has its own number, which all models share
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                # Copies, because a program may write to its inputs.
                given = {name: torch.tensor(array, device=self._device) for name, array in inputs.items()}
                arguments = [given.pop(name) for name in self._program.positional]
                answer = self._program.run(*arguments, **given)
                return {name: tensor.cpu().numpy() for name, tensor in _named(answer).items()}
        except Exception as error:  # the boundary to PyTorch
            raise ModelError(f"the model failed: {_first_line(error)}") from error

    def close(self) -> None:
        """Free the program."""
        del self._program


def _exported(file: Path, device: torch.device) -> _Program:
    program = torch.export.load(file)
    if device.type != "cpu":
        program = torch.export.passes.move_to_device_pass(program, device)
    signature, nodes = program.graph_signature, {one.name: one for one in program.graph.nodes}
    names = list(signature.user_inputs)
    arguments, keywords = program.call_spec.in_spec.children()
    flat = [*arguments.children(), *keywords.children()]
    if len(flat) != len(names) or not all(one.is_leaf() for one in flat):
        raise NotLoadable("an argument of the program is not a tensor; export one that takes only tensors")
    keyword_names = keywords.context
    positional = names[: len(names) - len(keyword_names)]
    called = {name: name for name in positional} | dict(
        zip(names[len(positional) :], keyword_names, strict=True)
    )
    values = [nodes[name].meta["val"] for name in names]
    specs = tuple(_spec(called[name], value) for name, value in zip(names, values, strict=True))
    fixed = {int(value.shape[0]) for value in values if isinstance(value.shape[0], int)}
    if len(fixed) > 1:
        raise NotLoadable("the inputs have different fixed first axes, which cannot all be rows")
    return _Program(program.module(), positional, specs, next(iter(fixed), None))


def _spec(name: str, value: Any) -> TensorSpec:
    if not isinstance(value, torch.Tensor):
        raise NotLoadable(f"input {name!r} is no tensor; export a program that takes only tensors")
    if not value.shape:
        raise NotLoadable(f"input {name!r} has no axes, but the first axis must be rows")
    dtype = _dtype(value.dtype)
    if dtype not in BY_DTYPE:
        raise NotLoadable(f"input {name!r} is {value.dtype}, which no request can carry")
    return TensorSpec(name, dtype, tuple(size if isinstance(size, int) else None for size in value.shape[1:]))


def _dtype(of_torch: torch.dtype) -> np.dtype[Any] | None:
    try:
        dtype: np.dtype[Any] = torch.empty(0, dtype=of_torch).numpy().dtype
    except TypeError:  # bfloat16 and the like
        return None
    return dtype


def _scripted(file: Path, options: RuntimeOptions, device: torch.device) -> _Program:
    with zipfile.ZipFile(file) as archive:
        if not any("/code/" in name for name in archive.namelist()):
            raise NotLoadable(
                f"{file.name} is not TorchScript but a pickle of torch.save; write the module with "
                "torch.export.save(torch.export.export(module, inputs), 'model.pt2'), or load it in model.py"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # that TorchScript is deprecated
        module = torch.jit.load(file, map_location=device).eval()
    names = [one.name for one in module.forward.schema.arguments[1:]]
    specs = _declared(str(options.options.get("inputs", "")), names)
    return _Program(module, names, specs, None)


def _declared(text: str, names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Return the inputs that ``runtime.options.inputs`` describes, in the program's order."""
    found = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, rest = part.partition(" ")
        datatype, _, shape = rest.strip().partition(" ")
        sizes = [one.strip() for one in shape.strip().removeprefix("[").removesuffix("]").split(",")]
        is_shape = sizes[0] == "rows" and all(one == "any" or one.isdecimal() for one in sizes[1:])
        if datatype not in BY_OIP or BY_OIP[datatype].dtype == STRING or not is_shape:
            raise NotLoadable(f"runtime.options.inputs: cannot read {part!r}; {_INPUTS_WAY_OUT}")
        row = tuple(None if one == "any" else int(one) for one in sizes[1:])
        found[name] = TensorSpec(name, BY_OIP[datatype].dtype, row)
    if sorted(found) != sorted(names):
        raise NotLoadable(
            f"runtime.options.inputs: expected {', '.join(names)}, which the program takes, got "
            f"{', '.join(found) or 'none'}; TorchScript has no types and shapes: {_INPUTS_WAY_OUT}"
        )
    return tuple(found[name] for name in names)


def _zeros(specs: Sequence[TensorSpec], rows: int, open_size: int) -> dict[str, Array]:
    return {
        spec.name: np.zeros((rows, *(size or open_size for size in spec.shape)), spec.dtype) for spec in specs
    }


def _named(answer: object) -> dict[str, torch.Tensor]:
    """Name a program's outputs: the keys of a dictionary, ``output``, or ``output_0`` and so on."""
    if isinstance(answer, torch.Tensor):
        return {"output": answer}
    if isinstance(answer, Mapping):
        named = {str(name): value for name, value in answer.items()}
    elif isinstance(answer, tuple | list):
        named = {f"output_{index}": value for index, value in enumerate(answer)}
    else:
        named = {"": answer}
    if not named or not all(isinstance(one, torch.Tensor) for one in named.values()):
        raise ModelError("expected a tensor, or a tuple or dictionary of tensors")
    return named


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.500}"
