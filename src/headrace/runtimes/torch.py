"""PyTorch programs: ``model.pt2`` as ``torch.export.save`` writes it, and TorchScript, ``model.pt``.

Both kinds of files hold code: ``torch.export.load`` runs pickles in them, and TorchScript programs may use
files. They load only where code may run. Inputs and outputs of a ``.pt2`` are those of the exported program;
a ``.pt`` needs the option ``inputs``. Needs the extra ``torch``.
"""

from __future__ import annotations

import math
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

_Shapes = Callable[[int, int], Sequence[tuple[int, ...]]]
"""Returns the inputs' shapes, given a number of rows, and a size for other open axes."""

_TRIED = ((2, 2), (3, 3), (2, 64), (3, 96))
"""Rows, and sizes of other open axes, in trial calls: large ones show axes that programs divide."""

_TRIED_VALUES = 2**22
"""Values of inputs up to which large sizes are tried."""


class _Program(NamedTuple):
    """A program and its description.

    Attributes:
        run: The program; takes and returns tensors.
        positional: Names of the inputs that it takes by position, in order; the others are taken by name.
        inputs: Its inputs.
        rows: Number of rows that it takes; None for any.
        trials: Inputs of zeros for trial calls, by ``_TRIED``.
    """

    run: Callable[..., Any]
    positional: Sequence[str]
    inputs: tuple[TensorSpec, ...]
    rows: int | None
    trials: Sequence[Tensors]


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
        """Return the outputs, found by trial calls; axes whose sizes differ between calls are open."""
        answers, failed = [], None
        for inputs in program.trials:
            try:
                answers.append((len(inputs[program.inputs[0].name]), self._predict(inputs)))
            except ModelError as error:  # such as a table of positions that is smaller than the size
                failed = failed or error
        if failed and len(answers) < 2:
            raise failed
        return tuple(
            _output(name, [(rows, answer[name]) for rows, answer in answers]) for name in answers[0][1]
        )

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
                # Copies here, too, because a program may return a buffer that its next call writes to.
                return {name: one.to("cpu", copy=True).numpy() for name, one in _named(answer).items()}
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
    trials = _trials(specs, _shapes_in_range(values, program.range_constraints))
    return _Program(program.module(), positional, specs, next(iter(fixed), None), trials)


def _shapes_in_range(values: Sequence[Any], ranges: Mapping[Any, Any]) -> _Shapes:
    """Return the shapes of a program's inputs, whose open axes are expressions of symbols with ranges."""
    of_rows = {symbol for value in values for symbol in _symbols(value.shape[0])}

    def size(axis: Any, rows: int, open_size: int) -> int:
        if isinstance(axis, int):
            return axis
        chosen = {
            symbol: rows if symbol in of_rows else _in_range(ranges.get(symbol), open_size)
            for symbol in _symbols(axis)
        }
        return int(axis.node.expr.subs(chosen))

    return lambda rows, open_size: [
        tuple(size(axis, rows, open_size) for axis in value.shape) for value in values
    ]


def _symbols(axis: Any) -> set[Any]:
    return set() if isinstance(axis, int) else set(axis.node.expr.free_symbols)


def _in_range(bounds: Any, size: int) -> int:
    """Return a size that is as far above the lower bound, at least 2, as the given size is above 2."""
    return size if bounds is None else int(min(max(bounds.lower, 2) + size - 2, bounds.upper))


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
    # Elsewhere an index beyond a table of positions would break the device for the whole process.
    tried = _TRIED if device.type == "cpu" else _TRIED[:2]
    return _Program(module, names, specs, None, _trials(specs, _shapes_of(specs), tried))


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


def _shapes_of(specs: Sequence[TensorSpec]) -> _Shapes:
    return lambda rows, open_size: [(rows, *(size or open_size for size in spec.shape)) for spec in specs]


def _trials(
    specs: Sequence[TensorSpec], shapes: _Shapes, tried: Sequence[tuple[int, int]] = _TRIED
) -> list[Tensors]:
    """Return inputs of zeros: of two sizes, and of large ones if axes other than rows are open."""
    is_open = any(None in spec.shape for spec in specs)
    chosen = [shapes(*sizes) for sizes in tried[: None if is_open else 2]]
    chosen[2:] = [one for one in chosen[2:] if sum(map(math.prod, one)) <= _TRIED_VALUES]
    return [
        {spec.name: np.zeros(shape, spec.dtype) for spec, shape in zip(specs, one, strict=True)}
        for one in chosen
    ]


def _output(name: str, answers: Sequence[tuple[int, Array]]) -> TensorSpec:
    """Return the description of an output.

    Args:
        name: Its name.
        answers: The numbers of rows of trial calls, each with the call's output.
    """
    one = answers[0][1]
    if any(array.ndim == 0 or len(array) != rows for rows, array in answers):
        raise NotLoadable(f"output {name!r} has no rows: its first axis must be that of the inputs")
    if one.dtype not in BY_DTYPE:
        raise NotLoadable(f"output {name!r} is {one.dtype}, which no answer can carry")
    sizes = zip(*(array.shape[1:] for _, array in answers), strict=True)
    return TensorSpec(name, one.dtype, tuple(each[0] if len(set(each)) == 1 else None for each in sizes))


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
