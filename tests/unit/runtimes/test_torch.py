"""Programs of PyTorch; in the environment of ``make test-torch`` only."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import LoadError, NotLoadable
from headrace.model.servable import DEFAULT_SIGNATURE
from headrace.runtimes.options import RuntimeOptions
from tests.conformance.torch_models import lookup, named, network, traced

torch = pytest.importorskip("torch", reason="make test-torch installs it")

ROWS = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)


def load(file: Path, **options: Any) -> Any:
    from headrace.runtimes.torch import load as load_torch

    return load_torch(file, RuntimeOptions(**{"allow_code": True, **options}))


def export(module: Any, directory: Path, *example: Any, rows: bool = True) -> Path:
    dim = torch.export.Dim("rows")
    shapes = tuple({0: dim} for _ in example) if rows else None
    program = torch.export.export(module.eval(), example, dynamic_shapes=shapes)
    torch.export.save(program, directory / "model.pt2")
    return directory / "model.pt2"


def script(module: Any, directory: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # that TorchScript is deprecated
        torch.jit.script(module).save(directory / "model.pt")


class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two outputs without names, the second of integers."""

    def forward(self, x: Any) -> tuple[Any, Any]:
        return x.sum(1), x.argmax(1)


class Writes(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Writes to its input."""

    def forward(self, x: Any) -> Any:
        x.mul_(2)
        return x.sum(1)


def test_answers_are_those_of_the_module(tmp_path: Path) -> None:
    servable = load(export(network(), tmp_path, torch.from_numpy(ROWS)))
    expected = network()(torch.from_numpy(ROWS)).detach().numpy()
    np.testing.assert_allclose(servable.predict({"input": ROWS})["output"], expected, rtol=1e-5, atol=1e-6)


def test_outputs_of_a_tuple_are_numbered(tmp_path: Path) -> None:
    servable = load(export(Module(), tmp_path, torch.from_numpy(ROWS)))
    outputs = [str(spec) for spec in servable.signatures[DEFAULT_SIGNATURE].outputs]
    assert outputs == ["output_0 FP32 [rows]", "output_1 INT64 [rows]"]
    assert servable.predict({"x": ROWS})["output_1"].tolist() == ROWS.argmax(axis=1).tolist()


def test_inputs_that_a_program_writes_to_are_copied(tmp_path: Path) -> None:
    servable = load(export(Writes(), tmp_path, torch.from_numpy(ROWS.copy())))
    given = ROWS.copy()
    given.flags.writeable = False
    np.testing.assert_allclose(servable.predict({"x": given})["output"], 2 * ROWS.sum(axis=1), rtol=1e-5)
    assert given.tolist() == ROWS.tolist()


class Doubles(torch.nn.Module):  # type: ignore[misc, name-defined]
    """An output whose axes are those of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        return x * 2


def test_an_axis_beside_fixed_rows_is_open_in_the_output(tmp_path: Path) -> None:
    dynamic = ({1: torch.export.Dim("length", min=2)},)
    program = torch.export.export(Doubles(), (torch.ones(1, 4),), dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "model.pt2")
    servable = load(tmp_path / "model.pt2")
    (output,) = servable.signatures[DEFAULT_SIGNATURE].outputs
    assert str(output) == "output FP32 [rows, any]"
    assert servable.predict({"x": ROWS[:1, :5]})["output"].tolist() == (2 * ROWS[:1, :5]).tolist()


class Every(torch.nn.Module):  # type: ignore[misc, name-defined]
    """An output with every fourth value of its input, and one of the last five."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[name-defined]
        return {"fourth": x[:, ::4], "last": x[:, -5:], "pair": x[:, :2]}


def test_an_axis_that_a_program_shortens_is_open(tmp_path: Path) -> None:
    script(Every(), tmp_path)
    servable = load(tmp_path / "model.pt", options={"inputs": "x FP32 [rows, any]"})
    outputs = [str(spec) for spec in servable.signatures[DEFAULT_SIGNATURE].outputs]
    assert outputs == ["fourth FP32 [rows, any]", "last FP32 [rows, any]", "pair FP32 [rows, 2]"]
    assert servable.predict({"x": ROWS})["fourth"].tolist() == ROWS[:, ::4].tolist()


class Positions(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A table of ten positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        return x[:, :, None] + self.table(torch.arange(x.shape[1]))


def test_sizes_beyond_a_table_of_positions_are_passed_over(tmp_path: Path) -> None:
    script(Positions(), tmp_path)
    servable = load(tmp_path / "model.pt", options={"inputs": "x FP32 [rows, any]"})
    (output,) = servable.signatures[DEFAULT_SIGNATURE].outputs
    assert str(output) == "output FP32 [rows, any, 3]"


class Groups(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Sums of eight values each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        return x.reshape(x.shape[0], -1, 8).sum(2)


def test_an_axis_may_have_multiples_of_a_number_only(tmp_path: Path) -> None:
    script(Groups(), tmp_path)
    servable = load(tmp_path / "model.pt", options={"inputs": "x FP32 [rows, any]"})
    assert servable.predict({"x": ROWS})["output"].shape == (5, 2)


def test_many_open_axes_are_not_tried_with_large_sizes(tmp_path: Path) -> None:
    script(Doubles(), tmp_path)
    shape = "x FP32 [rows, any, any, any, any, any, any]"  # 64 to the power of 6 are 275 GB
    servable = load(tmp_path / "model.pt", options={"inputs": shape})
    assert str(servable.signatures[DEFAULT_SIGNATURE].outputs[0]) == shape.replace("x ", "output ", 1)


class Largest(torch.nn.Module):  # type: ignore[misc, name-defined]
    """The largest three values, and what two inputs of related lengths have in common."""

    def forward(self, x: Any, y: Any) -> tuple[Any, Any]:
        return torch.topk(x, 3, dim=1).values, x + y[:, ::2]


@pytest.mark.parametrize(("least", "most"), [(8, 1000), (3, 4)])
def test_open_axes_are_tried_within_their_bounds(least: int, most: int, tmp_path: Path) -> None:
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length", min=least, max=most)
    dynamic = ({0: rows, 1: length}, {0: rows, 1: 2 * length})
    example = torch.ones(5, most), torch.ones(5, 2 * most)
    program = torch.export.export(Largest(), example, dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "model.pt2")
    servable = load(tmp_path / "model.pt2")
    outputs = [str(spec) for spec in servable.signatures[DEFAULT_SIGNATURE].outputs]
    assert outputs == ["output_0 FP32 [rows, 3]", "output_1 FP32 [rows, any]"]


class Counts(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Returns a part of its own buffer, which each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        self.calls.add_(1)
        return self.calls[: x.shape[0]]


def test_an_answer_stays_as_it_is_in_later_calls(tmp_path: Path) -> None:
    script(Counts(), tmp_path)
    servable = load(tmp_path / "model.pt", options={"inputs": "x FP32 [rows]"})
    first = servable.predict({"x": ROWS[:, 0]})["output"]
    before = first.tolist()
    assert servable.predict({"x": ROWS[:, 0]})["output"].tolist() == [one + 1 for one in before]
    assert first.tolist() == before


def test_each_model_has_its_own_number_of_threads_in_a_shared_thread(tmp_path: Path) -> None:
    file = export(Doubles(), tmp_path, torch.from_numpy(ROWS))
    servables = {threads: load(file, threads=threads) for threads in (1, 2)}
    for threads in (1, 2, 1):
        servables[threads].predict({"x": ROWS})
        assert torch.get_num_threads() == threads


def test_a_program_of_fixed_rows_says_so(tmp_path: Path) -> None:
    servable = load(export(network(), tmp_path, torch.from_numpy(ROWS), rows=False))
    assert servable.signatures[DEFAULT_SIGNATURE].rows == len(ROWS)


def test_code_needs_permission(tmp_path: Path) -> None:
    file = export(network(), tmp_path, torch.from_numpy(ROWS))
    with pytest.raises(NotLoadable, match="--allow-code"):
        load(file, allow_code=False)


def test_torchscript_without_types_names_the_option(tmp_path: Path) -> None:
    traced(lookup, named)(tmp_path)
    with pytest.raises(
        NotLoadable, match="inputs: expected features, keys, which the program takes, got none"
    ):
        load(tmp_path / "model.pt")
    with pytest.raises(NotLoadable, match=r"inputs: cannot read 'features FP32 \[16\]'"):
        load(tmp_path / "model.pt", options={"inputs": "features FP32 [16]; keys INT64 [rows, 3]"})


def test_a_pickled_module_is_refused_with_the_way_out(tmp_path: Path) -> None:
    torch.save(network(), tmp_path / "model.pt")
    with pytest.raises(NotLoadable, match=r"a pickle of torch.save; write the module with torch.export.save"):
        load(tmp_path / "model.pt")


def test_a_device_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    file = export(network(), tmp_path, torch.from_numpy(ROWS))
    with pytest.raises(LoadError, match=r"PyTorch cannot load model\.pt2"):
        load(file, options={"device": "meta-data"})


@pytest.mark.filterwarnings("ignore")  # of fastai, about what it uses of PyTorch and pandas
def test_the_model_of_a_fastai_learner_answers_as_the_learner_does(tmp_path: Path) -> None:
    pytest.importorskip("fastai", reason="make test-torch installs it")
    import fastai.callback.progress  # noqa: F401 - adds Learner.no_bar
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from torch.utils.data import DataLoader, TensorDataset

    rows, labels = torch.from_numpy(ROWS), torch.arange(5) % 3
    batches = DataLoader(TensorDataset(rows, labels), batch_size=5)
    learner = Learner(DataLoaders(batches, batches), network(), loss_func=torch.nn.CrossEntropyLoss())
    with learner.no_bar(), learner.no_logging():
        learner.fit(1, 0.01)
        expected, _ = learner.get_preds(dl=batches)
    servable = load(export(learner.model.cpu(), tmp_path, rows))
    answer = servable.predict({"input": ROWS})["output"]
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def test_tensorflow_may_be_loaded_before_it(tmp_path: Path) -> None:
    """PyTorch's triton, imported after TensorFlow, ended the process."""
    pytest.importorskip("triton", reason="PyTorch for CPUs has none")
    program = (
        "from headrace.runtimes import tensorflow, torch\n"
        "module = torch.torch.nn.Linear(2, 2)\n"
        "torch.torch.export.export(module, (torch.torch.ones(1, 2),))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
