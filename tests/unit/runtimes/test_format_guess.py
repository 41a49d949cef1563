"""Files that are no models: their errors say what they look like, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import LoadError
from headrace.cli.main import main
from headrace.runtimes.registry import RUNTIMES, RuntimeOptions, load
from tests.model_directories import affine

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html><html><body>Sign in</body></html>"
WHOLE = affine(1.0, 2.0)

LOOKS = {
    "cut": (WHOLE[:-9], f"its {len(WHOLE) - 9} B begin as an ONNX file does: it is cut or damaged"),
    "PyTorch": (b"PK\x03\x04" + bytes(96), "its 100 B look like a ZIP archive, as PyTorch"),
    "pickle": (b"\x80\x04\x95" + bytes(9), "look like a pickle; export the model to ONNX"),
    "gzip": (b"\x1f\x8b" + bytes(98), "its 100 B look like a gzip file; decompress it, and publish it again"),
    "TensorFlow Lite": (b"\x1c\0\0\0TFL3" + bytes(2000), "its 2.0 kB look like a TensorFlow Lite model"),
    "text": (b"no model", "its 8 B do not begin as an ONNX file does; export the model to ONNX"),
}


@pytest.mark.parametrize(("content", "said"), LOOKS.values(), ids=LOOKS)
def test_what_onnx_runtime_cannot_parse_is_told_by_its_look(
    content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(LoadError) as raised:
        load(tmp_path, RuntimeOptions())
    assert raised.value.message.startswith("ONNX Runtime cannot load model.onnx: ")
    assert said in raised.value.message


@pytest.mark.parametrize("content", [POINTER, PAGE], ids=["pointer", "page"])
@pytest.mark.parametrize("file", [one.file for one in RUNTIMES])
def test_what_stands_in_for_a_model_is_refused_by_all_runtimes(
    file: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).write_bytes(content)
    said = f"{file} is a pointer of Git LFS" if content == POINTER else f"{file} is a web page"
    with pytest.raises(LoadError, match=said):
        load(tmp_path, RuntimeOptions(allow_code=True))
    assert main(["publish", str(tmp_path / "models/m"), str(tmp_path / file)]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "models").exists()
