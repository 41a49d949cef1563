"""Guess a model file's format from its first bytes, so that errors can say what to do."""

from __future__ import annotations

from pathlib import Path

from headrace.base.files import open_file
from headrace.base.terminal import size

_HEAD_BYTES = 512
_WEB_PAGE = "is a web page: the download requires a login, or the address is wrong"
_TAKEN_FOR_MODELS = {
    b"version https://git-lfs": "is a pointer of Git LFS: `git lfs pull` fetches the file, then publish it",
    b"<!doctype html": _WEB_PAGE,
    b"<html": _WEB_PAGE,
}
_GZIP = b"\x1f\x8b"
_FORMATS = (
    (0, b"PK\x03\x04", "a ZIP archive, as PyTorch and Keras write it"),
    (0, b"\x89HDF\r\n", "an HDF5 file, as Keras writes it"),
    (0, _GZIP, "a gzip file"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ORTM", "a model in ONNX Runtime's own format"),
    (0, b"\x80\x02", "a pickle"),
    (0, b"\x80\x03", "a pickle"),
    (0, b"\x80\x04", "a pickle"),
    (0, b"\x80\x05", "a pickle"),
    (8, b'{"', "a safetensors file, which has weights and no graph"),
)
_VERSION_OF_FORMAT = b"\x08"  # the key of ModelProto.ir_version, which exporters write first


def mistaken_for_model(file: Path) -> str:
    """Describe a file that is often mistaken for a model; return "" for others, or if it cannot be read."""
    begin = _begin(file)
    if begin is None:
        return ""
    start = begin[0].lstrip().lower()
    if not start:
        return "is empty: copy it again, and publish the version again"
    return next((told for begins, told in _TAKEN_FOR_MODELS.items() if start.startswith(begins)), "")


def look_of_onnx(file: Path) -> str:
    """Describe an ONNX file that cannot be parsed: its size, its likely format, and what to do.

    Args:
        file: The file.
    """
    begin = _begin(file)
    if begin is None:
        return "it cannot be read again"
    head, size_bytes = begin
    what = next((name for at, mark, name in _FORMATS if head[at:].startswith(mark)), "")
    if what:
        is_packed = head.startswith(_GZIP)
        way_out = "decompress it, and publish it again" if is_packed else "export the model to ONNX"
        return f"its {size(size_bytes)} look like {what}; {way_out}"
    if head.startswith(_VERSION_OF_FORMAT):
        return (
            f"its {size(size_bytes)} begin as an ONNX file does: it is cut or damaged; compare its size and "
            "checksum with the original's, and publish it again"
        )
    return f"its {size(size_bytes)} do not begin as an ONNX file does; export the model to ONNX"


def _begin(file: Path) -> tuple[bytes, int] | None:
    """Return a file's first bytes and its size; None if it cannot be read."""
    try:
        with open_file(file) as opened:
            return opened.read(_HEAD_BYTES), file.stat().st_size
    except OSError:
        return None
