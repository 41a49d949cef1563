"""Images to vectors, from a real server, from files and from the contents themselves."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.image_embedder import RECIPE_METADATA, described, read_recipe
from headrace.archive.operations.open_archive import open_embedder
from headrace.base.errors import ConfigError
from headrace.config.image_recipe import Recipe
from tests.hostile_images import HostileServer, answer, redirect
from tests.image_encoder import encoded, picture, write_encoder

RED, BLUE = picture((255, 0, 0)), picture((0, 0, 255))
ENCODER = Path(os.environ.get("IMAGE_ENCODER", "efficientnet-lite0.onnx"))
"""A pretrained encoder, where there is one."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Embedder]]:
    """Opens embedders by the small encoder, which may ask this machine, and closes them."""
    write_encoder(tmp_path)
    made = []

    def open_one(port: int = 80, **settings: object) -> Embedder:
        table: dict[str, object] = {
            "kind": "image",
            "model": "means.onnx",
            "hosts": ["127.0.0.1"],
            "ports": [port],
            "allow_networks": ["127.0.0.0/8"],
        }
        made.append(open_embedder("covers", table | settings, tmp_path))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def test_urls_bytes_data_and_files_come_to_the_same(opened: Callable[..., Embedder], tmp_path: Path) -> None:
    (tmp_path / "covers" / "new").mkdir(parents=True)
    (tmp_path / "covers" / "new" / "red.png").write_bytes(RED)
    data = b"data:image/png;base64," + base64.b64encode(RED)
    with HostileServer({"/red.png": answer(RED)}) as server:
        embedder = opened(server.port, directory="covers")
        made = embedder.embed([RED, server.url("/red.png").encode(), data, b"new/red.png", BLUE])
    assert not made.failures
    np.testing.assert_allclose(made.vectors, [[1, 0, 0]] * 4 + [[0, 0, 1]], atol=1e-6)


def test_a_failing_image_fails_alone_with_its_reason(opened: Callable[..., Embedder], tmp_path: Path) -> None:
    handlers = {
        "/red.png": answer(RED),
        "/gone": answer(b"", "410 Gone"),
        "/forbidden": answer(b"", "403 Forbidden"),
        "/broken": answer(b"", "500 Oh no"),
        "/busy": answer(b"", "429 Too Many Requests", "Retry-After: 7"),
        "/moved": redirect("/red.png", "308 Permanent Redirect"),
        "/nowhere": answer(b"", "302 Found"),
        "/text": answer(b"<html>not found</html>"),
        "/empty": answer(b""),
        "/cut": answer(RED[:40]),
        "/gzip": answer(b"\x1f\x8b", "200 OK", "Content-Encoding: gzip"),
    }
    with HostileServer(handlers) as server:
        embedder = opened(server.port)
        paths = ["/red.png", "/missing", *list(handlers)[1:], "/red.png"]
        made = embedder.embed([server.url(path).encode() for path in paths])
    told = {paths[place]: failure for place, failure in made.failures.items()}
    assert {path: failure.is_final for path, failure in told.items()} == {
        "/missing": True,
        "/gone": True,
        "/forbidden": True,
        "/broken": False,
        "/busy": False,
        "/nowhere": True,
        "/text": True,
        "/empty": True,
        "/cut": True,
        "/gzip": True,
    }
    assert told["/gone"].reason == "'127.0.0.1' answered 410 'Gone'"
    assert told["/busy"].reason == "'127.0.0.1' answered 429 'Too Many Requests'; Retry-After '7'"
    assert told["/text"].reason.startswith("not an image: expected JPEG, PNG, WEBP, GIF, got b'<html>not fo'")
    for place in (0, paths.index("/moved"), len(paths) - 1):
        np.testing.assert_allclose(made.vectors[place], [1, 0, 0], atol=1e-6)


def test_no_connection_may_pass(opened: Callable[..., Embedder]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = opened(port).embed([f"http://127.0.0.1:{port}/a".encode()])
    assert not made.failures[0].is_final
    assert "cannot connect to '127.0.0.1': [Errno 111] Connection refused" in made.failures[0].reason


def test_downloads_run_side_by_side_and_never_more_than_are_allowed(opened: Callable[..., Embedder]) -> None:
    together, lock = threading.Barrier(4), threading.Lock()
    under_way, most = 0, 0

    def wait_for_three_others(connection: socket.socket, head: str) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        together.wait(timeout=120)
        with lock:
            under_way -= 1  # before the answer, after which the next may be asked for
        answer(RED)(connection, head)

    with HostileServer({"/red.png": wait_for_three_others}) as server:
        embedder = opened(server.port, connections=4, batch_rows=3)
        made = embedder.embed([server.url("/red.png").encode()] * 40)
        assert not made.failures
        assert most == 4
        np.testing.assert_allclose(made.vectors, [[1, 0, 0]] * 40, atol=1e-6)


def test_several_threads_share_the_downloads(opened: Callable[..., Embedder]) -> None:
    with HostileServer({"/red.png": answer(RED), "/blue.png": answer(BLUE)}) as server:
        embedder = opened(server.port, connections=3, batch_rows=2)
        made: dict[str, list[float]] = {}

        def call(path: str) -> None:
            made[path] = embedder.embed([server.url(path).encode()] * 20).vectors.sum(axis=0).tolist()

        threads = [threading.Thread(target=call, args=(path,)) for path in ("/red.png", "/blue.png")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert made["/red.png"] == pytest.approx([20, 0, 0])
    assert made["/blue.png"] == pytest.approx([0, 0, 20])


def test_tls_is_verified_for_the_name(opened: Callable[..., Embedder], tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=images.example", "-addext", "subjectAltName=DNS:images.example"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with HostileServer({"/red.png": answer(RED)}, context) as server:
        port = server.port
        settings = {"hosts": ["*.example"], "ca_file": "certificate.pem"}
        contents = [f"https://{name}.example:{port}/red.png".encode() for name in ("images", "other")]
        table = {"kind": "image", "model": "means.onnx", "ports": [port], "allow_networks": ["127.0.0.1"]}
        resolve = lambda host, port: ["127.0.0.1"]  # noqa: E731 - as small as a resolver can be
        embedder = open_embedder("covers", table | settings, tmp_path, resolve=resolve)
        made = embedder.embed(contents)
        embedder.close()
        strangers = open_embedder("covers", table | settings | {"ca_file": ""}, tmp_path, resolve=resolve)
        unknown = strangers.embed(contents[:1])
        strangers.close()
    assert list(made.failures) == [1]
    assert made.failures[1].is_final
    assert "Hostname mismatch, certificate is not valid for 'other.example'" in made.failures[1].reason
    assert "self-signed certificate" in unknown.failures[0].reason
    np.testing.assert_allclose(made.vectors[0], [1, 0, 0], atol=1e-6)


def test_fingerprints_change_with_encoder_and_recipe_and_with_nothing_else(
    opened: Callable[..., Embedder], tmp_path: Path
) -> None:
    first = opened().fingerprint
    assert opened(8080, hosts=["*"], threads=2, timeout_seconds=1).fingerprint == first
    assert opened(normalize=True).fingerprint != first
    write_encoder(tmp_path, "size = [8, 8]\nmean = [1, 1, 1]\n")
    assert opened().fingerprint != first


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"formats": ["SVG"]}, "formats"),
        ({"ports": [0]}, "ports: expected a whole number, 1 or more"),
        ({"allow_networks": ["localhost"]}, "allow_networks: expected networks like"),
        (
            {"ca_file": "none.pem"},
            r"ca_file: \S*none.pem cannot be used: No such file or directory; expected certificates in PEM",
        ),
        ({"directory": "nowhere"}, "directory: expected a directory"),
        ({"recipe": "nowhere.toml"}, r"recipe: .*nowhere\.toml cannot be read"),
        ({"model": "nowhere.onnx"}, "which does not exist"),
        ({"max_pixels": 178_956_971}, "max_pixels: expected a whole number, 1 to 178956970"),
        ({"connections": 0}, "connections: expected a whole number, 1 or more"),
    ],
)
def test_wrong_settings_are_told(
    settings: dict[str, object], said: str, opened: Callable[..., Embedder]
) -> None:
    with pytest.raises(ConfigError, match=said):
        opened(**settings)


def test_a_recipe_that_does_not_fit_the_encoder_is_told(tmp_path: Path) -> None:
    write_encoder(tmp_path, "size = [9, 9]\n")
    with pytest.raises(
        ConfigError, match=r"makes images \[rows, 3, 9, 9\], but the encoder takes image FP32"
    ):
        open_embedder("covers", {"kind": "image", "model": "means.onnx"}, tmp_path)
    write_encoder(tmp_path, "size = [8, 8]\nlayout = 'NHWC'\n", channels_first=False)
    embedder = open_embedder("covers", {"kind": "image", "model": "means.onnx"}, tmp_path)
    np.testing.assert_allclose(embedder.embed([BLUE]).vectors, [[0, 0, 1]], atol=1e-6)
    embedder.close()


@pytest.mark.skipif(not ENCODER.exists(), reason="IMAGE_ENCODER names no pretrained encoder")
def test_a_pretrained_encoder_sees_what_is_alike(tmp_path: Path) -> None:
    from sklearn.datasets import load_sample_images

    recipe = "size = [224, 224]\nresize = 256\nwhite = 255\nmean = [127, 127, 127]\nstd = [128, 128, 128]\n"
    (tmp_path / "lite.toml").write_text(recipe)
    table = {"kind": "image", "model": str(ENCODER), "recipe": "lite.toml", "normalize": True}
    embedder = open_embedder("photographs", table, tmp_path)
    from PIL import Image

    china, flower = (Image.fromarray(one) for one in load_sample_images().images)
    views = [
        china,
        china.resize((320, 213)),
        china.crop((40, 20, 620, 410)),
        flower,
        flower.resize((320, 213)),
    ]
    made = embedder.embed([encoded(one, "JPEG", quality=80) for one in views]).vectors
    embedder.close()
    assert made.shape == (5, 1280)
    cosines = made @ made.T
    assert cosines[0, 1] > 0.9
    assert cosines[3, 4] > 0.9
    assert cosines[0, 2] > 0.8
    assert cosines[0, 3] < 0.5


# Where recipes are found, and what of them is in a fingerprint.


def test_recipes_are_found_beside_the_encoder_or_in_its_metadata(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    told = r"recipe: expected a recipe that prepares images for model.onnx, got none.*encoder.toml"
    with pytest.raises(ConfigError, match=told):
        read_recipe(None, model, {})
    assert read_recipe(None, model, {RECIPE_METADATA: "size = [4, 4]"}).size == (4, 4)
    (tmp_path / "encoder.toml").write_text("size = [5, 5]")
    assert read_recipe(None, model, {RECIPE_METADATA: "size = [4, 4]"}).size == (5, 5)
    (tmp_path / "other.toml").write_text("size = [6, 6]\nsizes = 1")
    with pytest.raises(ConfigError, match=r"other.toml: sizes: unknown setting; did you mean size\?"):
        read_recipe(tmp_path / "other.toml", model, {})


def test_recipes_of_earlier_releases_are_described_as_these_did() -> None:
    assert described(Recipe(size=(4, 4))) == {
        "size": (4, 4),
        "resize": 0,
        "filter": "bicubic",
        "white": 1.0,
        "mean": (0.0, 0.0, 0.0),
        "std": (1.0, 1.0, 1.0),
        "layout": "NCHW",
        "channels": "RGB",
    }
    assert described(Recipe(size=(4, 4), fit="stretch"))["fit"] == "stretch"
