"""Labels of PNG images over REST, as TensorFlow Serving's users send them: open-loop latency by arrival rate.

A network with one hidden layer is trained on Fashion-MNIST (`--data DIR` with its four IDX files) or, without
it, on scikit-learn's handwritten digits, enlarged to the same 28 × 28. `headrace serve` decodes, normalises,
computes and names the class, each on one core; requests arrive at random moments, whatever the answers do.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import io
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from PIL import Image

from benchmarks.models import CACHE
from benchmarks.open_loop import Ended, Load, Seen, send
from benchmarks.processes import START_SECONDS, Server, http_post, running
from benchmarks.rounds import Effort, interleaved, middle, print_lines, spread
from benchmarks.sides import headrace

RATES = (100, 300, 500, 700, 1000, 1500)
SIDE, HIDDEN = 28, 128
_EPOCHS = 20
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
PUBLISHED = {  # on other machines: p99 in ms by requests a second
    "TensorFlow Serving, published": {100: 2.6, 500: 16.8, 700: 62.0},
    "BentoML, published": {100: 15.0, 500: 143.0, 700: 411.0},
}
PLOT = CACHE / "fashion.png"
_PATH = "/v1/models/fashion:predict"
_BODIES, _TESTED = 200, 500
_SETTLE_SECONDS = 0.5
_IMAGES_MAGIC, _LABELS_MAGIC = 2051, 2049
_MOST_MS = 1e4

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Images:
    """Gray images and their classes, to train on and to test with.

    Attributes:
        name: What they show.
        labels: Names of the classes.
        trained, train_classes: uint8 `[images, 28, 28]`, and their classes.
        tested, test_classes: The same.
    """

    name: str
    labels: tuple[str, ...]
    trained: Pixels
    train_classes: Pixels
    tested: Pixels
    test_classes: Pixels


def run(effort: Effort) -> None:
    """Train, serve, ask at each rate in turns, and print a table.

    Args:
        effort: How many rounds of how many seconds; where the data are; whether to draw.
    """
    images = digits() if effort.data is None else read(effort.data)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        right = write(Path(folder, "fashion"), images)
        told = f"{len(images.trained):,} trained on, accuracy on {len(right):,} others {right.mean():.1%}"
        print(f"{images.name}: {told}")
        with running(headrace("json", Path(folder)).command) as server:
            files = [png(pixels) for pixels in images.tested[:_TESTED]]
            _await_ready(server)
            _print_accuracy(server, images, files, right)
            bodies = [body(file) for file in files[:_BODIES]]
            sides = {str(rate): round_of(server, bodies, rate, effort) for rate in RATES}
            measured = interleaved(sides, effort.rounds)
    print_lines([_HEAD, *(_line(int(rate), rounds) for rate, rounds in measured.items())])
    if effort.plot:
        _plot(images.name, measured)
        print(f"plot: {PLOT}")


def _await_ready(server: Server) -> None:
    """Wait until the model is loaded: the ports are open before."""
    until = time.monotonic() + START_SECONDS
    while _get(server, "/v2/health/ready") != http.HTTPStatus.OK:
        if time.monotonic() > until:
            raise RuntimeError(f"the model was not ready after {START_SECONDS:g} s")
        time.sleep(0.1)


def _get(server: Server, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def _print_accuracy(server: Server, images: Images, files: list[bytes], alone: npt.NDArray[np.bool_]) -> None:
    """Print how many labels are right over REST, and of the same images without a server and PNG files."""
    served = [ask(server, file) for file in files]
    right = [label == images.labels[one] for label, one in zip(served, images.test_classes, strict=False)]
    size = np.mean([len(file) for file in files])
    both = f"{np.mean(right):.1%}, without a server {alone[: len(files)].mean():.1%}"
    print(f"over REST, of the first {len(files)}: {both}; PNG files of {size:.0f} bytes")


# ---- Images, and the model ----


def read(directory: Path) -> Images:
    """Read the four IDX files of Fashion-MNIST, compressed or not.

    Raises:
        SystemExit: A file is missing, or is not what its name says.
    """
    parts = [
        _idx(directory, f"{part}-{kind}", magic)
        for part in ("train", "t10k")
        for kind, magic in (("images-idx3-ubyte", _IMAGES_MAGIC), ("labels-idx1-ubyte", _LABELS_MAGIC))
    ]
    return Images("Fashion-MNIST", CLOTHES, *parts)


def _idx(directory: Path, name: str, magic: int) -> Pixels:
    plain, packed = directory / name, directory / f"{name}.gz"
    if not (plain.exists() or packed.exists()):
        raise SystemExit(f"--data: expected {name} or {name}.gz in {directory}")
    content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    count_of_axes = magic % 256
    found, *shape = np.frombuffer(content, ">u4", 1 + count_of_axes).tolist()
    values = np.frombuffer(content, np.uint8, offset=4 * (1 + count_of_axes))
    if found != magic or values.size != np.prod(shape) or shape[1:] not in ([], [SIDE, SIDE]):
        raise SystemExit(f"--data: {name} is not an IDX file of Fashion-MNIST, or is cut")
    return values.reshape(shape)


def digits() -> Images:
    """The handwritten digits in scikit-learn, enlarged from 8 × 8."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import

    found = load_digits()
    small = (found.images * (255 / 16)).astype(np.uint8)
    large = np.stack([np.asarray(Image.fromarray(one).resize((SIDE, SIDE))) for one in small])
    classes = found.target.astype(np.uint8)
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return Images("handwritten digits", names, large[:-500], classes[:-500], large[-500:], classes[-500:])


def write(directory: Path, images: Images) -> npt.NDArray[np.bool_]:
    """Train a network, and write it as version 1 of a model; of which tested images it is right."""
    from sklearn.neural_network import MLPClassifier  # noqa: PLC0415 - slow to import

    mean, std = images.trained.mean() / 255, images.trained.std() / 255
    network = MLPClassifier((HIDDEN,), max_iter=_EPOCHS, random_state=1)
    with warnings.catch_warnings(action="ignore"):  # it says that it could learn for longer
        network.fit(_numbers(images.trained, mean, std), images.train_classes)
    version = directory / "1"
    version.mkdir(parents=True)
    onnx.save(_graph(network.coefs_, network.intercepts_), str(version / "model.onnx"))
    (version / "labels.txt").write_text("\n".join(images.labels), "utf-8")
    (directory / "headrace.toml").write_text(
        f'[image]\nsize = [{SIDE}, {SIDE}]\nchannels = "gray"\nlayout = "NHW"\n'
        f"mean = [{mean}]\nstd = [{std}]\n"
        '[signature]\nlabels_file = "labels.txt"\ntop = 1\n',
        "utf-8",
    )
    right: npt.NDArray[np.bool_] = network.predict(_numbers(images.tested, mean, std)) == images.test_classes
    return right


def _numbers(pixels: Pixels, mean: float, std: float) -> npt.NDArray[np.float32]:
    numbers: npt.NDArray[np.float32] = ((pixels.reshape(len(pixels), -1) / 255 - mean) / std).astype(
        np.float32
    )
    return numbers


def _graph(weights: list[Any], biases: list[Any]) -> onnx.ModelProto:
    """The network as a graph: pixels `[rows, 28, 28]` to probabilities `[rows, classes]`."""
    value, constant = helper.make_tensor_value_info, onnx.numpy_helper.from_array
    constants = [constant(np.array([-1, SIDE * SIDE]), "flat")]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        constants += [
            constant(weight.astype(np.float32), f"w{number}"),
            constant(bias.astype(np.float32), f"b{number}"),
        ]
    nodes = [
        helper.make_node("Reshape", ["pixels", "flat"], ["row"]),
        helper.make_node("Gemm", ["row", "w0", "b0"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "w1", "b1"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"]),
    ]
    inputs = [value("pixels", TensorProto.FLOAT, ["rows", SIDE, SIDE])]
    outputs = [value("probabilities", TensorProto.FLOAT, ["rows", len(biases[-1])])]
    graph = helper.make_graph(nodes, "network", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# ---- Requests ----


def png(pixels: Pixels) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def body(file: bytes) -> bytes:
    """A request with one image, in TensorFlow Serving's JSON."""
    return json.dumps({"instances": [{"b64": base64.b64encode(file).decode()}]}).encode()


def ask(server: Server, file: bytes) -> str:
    """The label of an image.

    Raises:
        RuntimeError: The server did not answer.
    """
    answer = http_post(server.ports["http"], _PATH, body(file), "application/json")
    label: str = json.loads(answer)["predictions"][0]["label"]
    return label


@dataclass(frozen=True)
class Round:
    """One turn at one rate.

    Attributes:
        seen: What became of each request.
        busy: The share of its core that the server used.
    """

    seen: Seen
    busy: float

    @property
    def lost(self) -> int:
        """Requests that were not answered."""
        return int((self.seen.how != Ended.ANSWERED).sum())

    def milliseconds(self, percentile: float) -> float:
        """How long requests took from when they were due; a lost one counts as the slowest."""
        spent = np.where(self.seen.how == Ended.ANSWERED, self.seen.spent * 1e3, _MOST_MS)
        return float(np.percentile(spent, percentile))


def round_of(server: Server, bodies: list[bytes], rate: int, effort: Effort) -> Callable[[], Round]:
    """Say how to send at a rate for one turn: each request alone, at random moments."""
    random = np.random.default_rng(rate)

    def measure() -> Round:
        moments = np.cumsum(random.exponential(1 / rate, round(rate * effort.seconds))) + _SETTLE_SECONDS
        before = server.counters().cpu_seconds
        seen = send(Load("json", server.ports["http"], _PATH, bodies, moments.tolist()))
        return Round(seen, (server.counters().cpu_seconds - before) / float(moments[-1] - _SETTLE_SECONDS))

    return measure


_HEAD = ("requests/s", "requests", "lost", "p50 ms", "p99 ms", "server busy", "load late p99 ms")


def _line(rate: int, rounds: list[Round]) -> tuple[str, ...]:
    late = [float(np.percentile(one.seen.sent - one.seen.due, 99)) * 1e3 for one in rounds]
    return (
        str(rate),
        f"{sum(len(one.seen.due) for one in rounds):,}",
        str(sum(one.lost for one in rounds)),
        spread([one.milliseconds(50) for one in rounds]),
        spread([one.milliseconds(99) for one in rounds]),
        f"{middle([one.busy for one in rounds]):.0%}",
        f"{middle(late):.2f}",
    )


def _plot(name: str, measured: dict[str, list[Round]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure((8, 4.5), layout="constrained")
    axes = figure.subplots()
    for percentile, style in ((99, "o-"), (50, "o:")):
        values = [middle([one.milliseconds(percentile) for one in rounds]) for rounds in measured.values()]
        axes.plot(
            [int(rate) for rate in measured],
            values,
            style,
            color="tab:blue",
            label=f"headrace, p{percentile}",
        )
    for (server, points), colour in zip(PUBLISHED.items(), ("tab:orange", "tab:green"), strict=True):
        axes.plot(list(points), list(points.values()), "s--", color=colour, label=f"{server}, p99")
    axes.set_yscale("log")
    axes.set_xlabel("requests/s, each with one PNG image of 28 × 28 in base64")
    axes.set_ylabel("latency, ms")
    axes.set_title(f"{name}; the published curves are from other machines", fontsize=10)
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    FigureCanvasAgg(figure).print_figure(PLOT, dpi=120)
