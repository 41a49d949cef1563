"""Which runtime loads which file, and what is said when none can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from headrace import example
from headrace.base.errors import LoadError, NotLoadable
from headrace.config.headrace_toml import RuntimeKind
from headrace.runtimes import registry
from headrace.runtimes.registry import RUNTIMES, Runtime, RuntimeOptions, SignatureSettings, find


@pytest.mark.parametrize(
    ("names", "kind", "runtime", "file"),
    [
        (["model.onnx"], "", "onnx", "model.onnx"),
        (["model.onnx", "model.onnx.data", "warm_up.jsonl"], "", "onnx", "model.onnx"),
        (["ctr.onnx", "labels.txt"], "", "onnx", "ctr.onnx"),
        (["model.skops"], "", "sklearn", "model.skops"),
        (["forest.skops"], "", "sklearn", "forest.skops"),
        (["model.py", "helper.py"], "", "python", "model.py"),
        (["model.txt", "notes.txt"], "", "lightgbm", "model.txt"),
        (["model.ubj", "columns.json"], "", "xgboost", "model.ubj"),
        (["trees.ubj"], "", "xgboost", "trees.ubj"),
        (["model.json"], "", "xgboost", "model.json"),
        (["model.cbm"], "", "catboost", "model.cbm"),
        (["model.keras"], "", "keras", "model.keras"),
        (["model.tflite"], "", "litert", "model.tflite"),
        (["model.vw.txt"], "", "vw", "model.vw.txt"),
        (["churn.vw.txt", "notes.txt"], "", "vw", "churn.vw.txt"),
        (["model.txt", "churn.vw.txt"], "", "lightgbm", "model.txt"),
        (["model.json", "model.onnx"], "onnx", "onnx", "model.onnx"),
        # A runtime's own file name settles it, whatever lies beside it.
        (["encoder.onnx", "model.py"], "", "python", "model.py"),
        (["model.onnx", "other.onnx"], "", "onnx", "model.onnx"),
        (["model.onnx", "model.py"], "onnx", "onnx", "model.onnx"),
        (["model.onnx", "model.py"], "python", "python", "model.py"),
    ],
)
def test_a_directory_is_recognised_by_its_files(names: list[str], kind: str, runtime: str, file: str) -> None:
    found, name = find(names, kind)
    assert (found.kind, name) == (runtime, file)


@pytest.mark.parametrize(
    ("names", "kind", "said"),
    [
        ([], "", r"expected model.onnx, \*.onnx, model.skops, .*model.py; .* no files"),
        (["README.txt"], "", "the directory holds README.txt"),
        (["model.onnx.part"], "", "no model found"),
        (["model.py"], "onnx", r"expected model.onnx, \*.onnx; the directory holds model.py"),
        (["a.onnx", "b.onnx"], "", "which is the model. To decide, keep one of them, or call it model.onnx$"),
        (
            ["model.onnx", "model.skops"],
            "",
            "To decide, keep one of them, or set runtime.kind in the model's headrace.toml to "
            "'onnx' or 'sklearn'$",
        ),
        (["a.onnx", "a.skops"], "", "call it model.onnx or model.skops, or set runtime.kind"),
        (["model.txt", "model.vw.txt"], "", "found model.txt, model.vw.txt: which is the model"),
        (["churn.pkl"], "", "runs whatever code is in it"),
        (["churn.joblib"], "sklearn", "skops.io.dump.*call it model.joblib or model.pkl"),
        (
            ["model.joblib", "model.skops"],
            "",
            "found model.skops, model.joblib: which is the model. To decide, keep one of them$",
        ),
        (["model.onnx"], "fasttext", "runtime.kind: expected onnx, sklearn, .*python, got 'fasttext'"),
    ],
)
def test_what_is_not_recognised_is_listed_with_what_would_be(names: list[str], kind: str, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        find(names, kind)


def test_a_pickle_beside_a_model_is_a_file_of_the_model() -> None:
    assert find(["scaler.pkl", "net.onnx"])[1] == "net.onnx"
    assert find(["model.pkl", "scaler.pkl"])[1] == "model.pkl"


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = Runtime("sklearn", "headrace.runtimes.not_there", "model.skops", "*.skops", extra="sklearn")
    monkeypatch.setattr(registry, "find", lambda *_: (row, "model.skops"))
    with pytest.raises(LoadError, match=r"pip install 'headrace\[sklearn\]'"):
        registry.load(tmp_path, RuntimeOptions())


def test_a_directory_that_cannot_be_read_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot read the version directory"):
        registry.load(tmp_path / "missing", RuntimeOptions())


def test_a_subdirectory_that_cannot_be_read_holds_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "export").mkdir()
    iterdir = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:  # root, who may run the tests, can read any directory
        if path.name == "export":
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(NotLoadable, match=r"no model found: .* the directory holds no files$"):
        registry.load(tmp_path, RuntimeOptions())


@pytest.mark.parametrize("setting", ["scores", "classes"])
def test_signature_settings_must_name_outputs(tmp_path: Path, setting: str) -> None:
    version = example.write(tmp_path) / "1"
    with pytest.raises(LoadError, match=rf"signature\.{setting}: the model has no output 'p'; it has y"):
        registry.load(version, RuntimeOptions(signature=SignatureSettings(**{setting: "p"})))


def test_the_kind_of_signature_is_as_configured(tmp_path: Path) -> None:
    version = example.write(tmp_path) / "1"
    options = RuntimeOptions(signature=SignatureSettings(kind="regress", scores="y"))
    servable = registry.load(version, options)
    assert servable.signatures["serving_default"].kind == "regress"
    assert servable.predict({"x": np.zeros(1, np.float32)})["y"].tolist() == [2.0]
    servable.close()


def test_no_framework_is_imported_before_it_is_needed() -> None:
    program = "import sys, headrace.runtimes.registry; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    ).stdout
    assert not {"onnxruntime", "sklearn", "skops", "threadpoolctl"} & set(modules.split())


def test_a_package_that_is_not_installed_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.skops").write_bytes(b"a model")
    monkeypatch.setitem(sys.modules, "headrace.runtimes.sklearn", None)  # as if its packages were missing
    with pytest.raises(NotLoadable, match=r"cannot be imported .*pip install 'headrace\[sklearn\]'"):
        registry.load(tmp_path, registry.RuntimeOptions())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "model.onnx is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n<title>Sign in</title>", "is a web page"),
        (b"\n<HTML><body>", "is a web page"),
        (b"\xff" * 100, "its 100 B do not begin as an ONNX file does; export"),
    ],
    ids=["empty", "Git LFS", "web page", "web page in capitals", "garbage"],
)
def test_what_is_often_taken_for_a_model_is_called_what_it_is(
    content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(LoadError, match=said):
        registry.load(tmp_path, RuntimeOptions())


def test_settings_may_name_each_runtime_and_nothing_else() -> None:
    assert set(get_args(RuntimeKind)) == {"", *(one.kind for one in RUNTIMES)}
