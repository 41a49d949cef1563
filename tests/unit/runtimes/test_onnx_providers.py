from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from headrace.base.errors import LoadError, NotLoadable
from headrace.runtimes import registry
from headrace.runtimes.onnx_providers import expect_providers, find_providers
from headrace.runtimes.options import Option, RuntimeOptions
from tests.model_directories import affine

CPU, CUDA, TENSORRT = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt"))


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of ONNX Runtime that has each provider."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", onnxruntime.get_all_providers)


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize(
    ("options", "providers"),
    [
        ({}, [(CPU, {})]),
        ({"providers": "cuda"}, [(CUDA, {}), (CPU, {})]),
        ({"providers": "tensorrt, cuda"}, [(TENSORRT, {}), (CUDA, {}), (CPU, {})]),
        ({"providers": "cpu,cuda"}, [(CUDA, {}), (CPU, {})]),
        (
            {"providers": "cuda", "cuda.device_id": 1, "cuda.use_tf32": False},
            [(CUDA, {"device_id": "1", "use_tf32": "0"}), (CPU, {})],
        ),
    ],
)
def test_the_processor_is_last(options: dict[str, Option], providers: list[tuple[str, object]]) -> None:
    assert find_providers(options) == providers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"providers": "gpu"}, "expected some of cpu, cuda, tensorrt, openvino, coreml, .* got 'gpu'"),
        ({"providers": ""}, "got ''"),
        (
            {"providers": "cuda"},
            "the installed ONNX Runtime has cpu, not cuda; .*pip install onnxruntime-gpu",
        ),
        ({"cuda.device_id": 1}, r"runtime\.options\.cuda\.device_id: .*does not choose cuda"),
    ],
)
def test_a_provider_that_cannot_be_had_is_an_error_that_says_so(
    options: dict[str, Option], said: str, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").write_bytes(affine(1.0, 2.0))
    with pytest.raises(NotLoadable, match=said):
        registry.load(tmp_path, RuntimeOptions(options=options))


def test_a_provider_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    """ONNX Runtime would compute on the processor instead."""
    session = onnxruntime.InferenceSession(affine(1.0, 2.0), providers=[CPU])
    expect_providers(session, [(CPU, {})])
    with pytest.raises(LoadError, match="could not start CUDAExecutionProvider"):
        expect_providers(session, [(CUDA, {}), (CPU, {})])


def test_the_processor_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(affine(1.0, 2.0))
    registry.load(tmp_path, RuntimeOptions(options={"providers": "cpu"})).close()
