"""Embedders beside their encoders alone: texts, and images that are downloaded.

Texts are film titles of MovieLens, by MiniLM. Images are photographs as JPEG, from a server of Python's own
in a process of its own; the encoder is the ONNX file that HEADRACE_IMAGE_ENCODER names (with its
``encoder.toml`` beside it), or else convolutions of random weights, which take 150 million multiplications an
image. The encoders alone get what is tokenized, downloaded, decoded and stacked already, in the same runs.
The encoders have one thread; downloads and decoding use all cores beside it.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from benchmarks.models import ROOT
from benchmarks.rounds import Effort, interleaved, middle, print_lines, ratios, spread, verdict
from demo import data
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.image_embedder import read_recipe
from headrace.archive.embedders.text_embedder import TextEmbedder, runs
from headrace.archive.operations.open_archive import open_embedder
from headrace.base.tensors import Tensors
from headrace.config.image_recipe import FORMATS, Recipe
from headrace.images.decoding import ImageLimits, decoded
from headrace.images.preparation import prepared
from headrace.runtimes import onnx as onnx_runtime
from headrace.runtimes.options import RuntimeOptions

LEAST = 0.9
"""What an embedder is to reach of its encoder's rate."""

ENCODER = "HEADRACE_IMAGE_ENCODER"

_BATCH, _ROWS = 256, 16
_PHOTOGRAPHS, _TIMES = 64, 4
_RECIPE = "size = [224, 224]\nresize = 256\nwhite = 255\nmean = [127, 127, 127]\nstd = [128, 128, 128]\n"
# 3 × 3 convolutions of random weights: channels in and out, and stride.
_LAYERS = ((3, 32, 2), (32, 48, 2), (48, 96, 2), (96, 192, 2), (192, 384, 2))


def run(effort: Effort) -> None:
    """Measure both kinds.

    Args:
        effort: How much measuring is done.
    """
    with tempfile.TemporaryDirectory() as directory:
        _texts(effort, _titles())
        _images(effort, Path(directory))


def _titles() -> list[bytes]:
    films = data.load(data.fetch(ROOT / ".data" / "ratings")).films.values()
    return [film.title.encode() for film in films][:_BATCH]


def _texts(effort: Effort, titles: Sequence[bytes]) -> None:
    embedder = open_embedder("minilm", None, Path())
    if not isinstance(embedder, TextEmbedder):
        raise TypeError("minilm is no encoder of texts")
    tokens = [embedder._tokens(title) for title in titles]
    prepared = [
        embedder._inputs_of([tokens[place] for place in run])[1]
        for run in runs([len(one.ids) for one in tokens])
    ]
    alone = _alone(embedder._encoder._servable.predict, prepared, len(titles), effort.seconds)
    _compare("texts", effort, alone, _embedding(embedder, titles, effort.seconds))
    embedder.close()


def _images(effort: Effort, directory: Path) -> None:
    model = Path(os.environ[ENCODER]) if ENCODER in os.environ else _random_encoder(directory)
    photographs = _photographs(directory / "photographs")
    recipe = read_recipe(None, model, {})
    images = [_prepared(one, recipe) for one in photographs]
    servable = onnx_runtime.load(model, RuntimeOptions(threads=1))
    name = servable.signatures["serving_default"].inputs[0].name
    prepared = [{name: np.stack(images[start : start + _ROWS])} for start in range(0, len(images), _ROWS)]
    with _serving(photographs[0].parent) as port:
        settings = {"hosts": ["127.0.0.1"], "ports": [port], "allow_networks": ["127.0.0.1"]}
        table = {"kind": "image", "model": str(model), "batch_rows": _ROWS, **settings}
        embedder = open_embedder("photographs", table, directory)
        urls = [f"http://127.0.0.1:{port}/{one.name}".encode() for one in photographs * _TIMES]
        alone = _alone(servable.predict, prepared, len(images), effort.seconds)
        _compare("images", effort, alone, _embedding(embedder, urls, effort.seconds))
        embedder.close()


def _compare(kind: str, effort: Effort, alone: Callable[[], float], embedding: Callable[[], float]) -> None:
    measured = interleaved({"alone": alone, "embedder": embedding}, effort.rounds)
    times = ratios(measured["embedder"], measured["alone"])
    print_lines(
        [
            (kind, "a second"),
            ("the encoder alone", spread(measured["alone"], 1)),
            ("the embedder", spread(measured["embedder"], 1)),
        ]
    )
    verdict(f"{kind}, embedder ≥ {LEAST} × its encoder alone", middle(times) >= LEAST, spread(times))


def _alone(
    predict: Callable[[Tensors], object], prepared: Sequence[Tensors], count: int, seconds: float
) -> Callable[[], float]:
    def measure() -> float:
        return _rate(lambda: [predict(inputs) for inputs in prepared], count, seconds)

    return measure


def _embedding(embedder: Embedder, contents: Sequence[bytes], seconds: float) -> Callable[[], float]:
    def measure() -> float:
        return _rate(lambda: _embedded(embedder, contents), len(contents), seconds)

    return measure


def _embedded(embedder: Embedder, contents: Sequence[bytes]) -> None:
    made = embedder.embed(contents)
    assert not made.failures, next(iter(made.failures.values()))


def _rate(call: Callable[[], object], count: int, seconds: float) -> float:
    """Contents a second; whole batches only."""
    done, began = 0, time.perf_counter()
    while done == 0 or time.perf_counter() - began < seconds:
        call()
        done += count
    return done / (time.perf_counter() - began)


# ---- Photographs, and what serves them ----


def _photographs(directory: Path) -> list[Path]:
    """Parts of scikit-learn's two photographs, as a shop's would be: 480 × 400, 44 KB each."""
    from sklearn.datasets import load_sample_images  # noqa: PLC0415 - slow to import

    directory.mkdir()
    random, files = np.random.default_rng(7), []
    for number, pixels in enumerate(load_sample_images().images * (_PHOTOGRAPHS // 2)):
        left, top = random.integers(0, 160), random.integers(0, 27)
        file = io.BytesIO()
        Image.fromarray(pixels[top : top + 400, left : left + 480]).save(file, "JPEG", quality=85)
        files.append(directory / f"{number}.jpg")
        files[-1].write_bytes(file.getvalue())
    return files


def _prepared(file: Path, recipe: Recipe) -> Any:
    image = decoded(file.read_bytes(), recipe, ImageLimits(FORMATS, 10**7))
    return prepared(image, recipe, np.dtype(np.float32))


@contextmanager
def _serving(directory: Path) -> Iterator[int]:
    """Serve a directory; the port it is served on."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--directory", directory], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r"port (\d+)", process.stdout.readline())
        assert found is not None
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


def _random_encoder(directory: Path) -> Path:
    random = np.random.default_rng(7)
    nodes, weights, value = [], [], "image"
    for number, (channels, filters, stride) in enumerate(_LAYERS):
        weight = random.normal(0, (9 * channels) ** -0.5, (filters, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        pads = [1, 1, 1, 1]
        nodes.append(
            helper.make_node("Conv", [value, f"w{number}"], [f"c{number}"], pads=pads, strides=[stride] * 2)
        )
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        value = f"r{number}"
    nodes.append(helper.make_node("ReduceMean", [value], ["embedding"], axes=[2, 3], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", 3, 224, 224])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["rows", _LAYERS[-1][1]])],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(directory / "random.onnx"))
    (directory / "encoder.toml").write_text(_RECIPE)
    return directory / "random.onnx"
