"""A small image encoder of real arithmetic: the mean of each channel, as an ONNX file with its recipe."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image

SIZE = 8
RECIPE = f"size = [{SIZE}, {SIZE}]\n"


def write_encoder(directory: Path, recipe: str = RECIPE, *, channels_first: bool = True) -> Path:
    """Write ``means.onnx``, and its recipe beside it."""
    shape = [3, SIZE, SIZE] if channels_first else [SIZE, SIZE, 3]
    axes = [2, 3] if channels_first else [1, 2]
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["image"], ["embedding"], axes=axes, keepdims=0)],
        "means",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", *shape])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["rows", 3])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(directory / "means.onnx"))
    if recipe:
        (directory / "encoder.toml").write_text(recipe)
    return directory / "means.onnx"


def picture(colour: tuple[int, ...] = (255, 0, 0), *, kind: str = "PNG", side: int = 16) -> bytes:
    """An image file of one colour."""
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[len(colour)]
    return encoded(Image.new(mode, (side, side), colour if len(colour) > 1 else colour[0]), kind)


def encoded(image: Image.Image, kind: str = "PNG", **settings: object) -> bytes:
    """An image as a file's bytes."""
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def photograph(side: int = 256) -> Image.Image:
    """Something with edges and colours, the same each time."""
    rows, columns = np.mgrid[:side, :side]
    red, green = rows * 255 // side, columns * 255 // side
    blue = ((rows // 16 + columns // 16) % 2) * 255
    return Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """An image file that says how large it is, whatever its data are."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file, with its length and its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
