"""The image of deploy/docker, built and run step by step: another user, a root that nobody can write to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.balanced import free_ports
from tests.conformance.ctr_models import field_inputs, write
from tests.plain_image import ROOT, Build, Stage, can_be_run
from tests.waiting import seconds_left

pytestmark = [
    pytest.mark.rest,
    pytest.mark.skipif(not can_be_run(), reason="only root may mount and chroot"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one click model, which cannot answer without compiled kernels."""
    directory = tmp_path_factory.mktemp("models")
    version = directory / "clicks" / "1"
    version.mkdir(parents=True)
    write(version, "lr")
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return directory


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Stage:
    """The image, with the kernels of that model only: those of all would take a minute."""
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    given = {"KERNELS": "/models"}
    return Build(ROOT / "deploy/docker/Dockerfile", folder, given, {"/models": models}).image


def environment(image: Stage, ports: list[int]) -> dict[str, str]:
    http_port, grpc_port = map(str, ports)
    own = {"HEADRACE_SERVE_HTTP_PORT": http_port, "HEADRACE_SERVE_GRPC_PORT": grpc_port}
    return {**image.environment, **own}


@contextmanager
def container(image: Stage, models: Path, ports: list[int]) -> Iterator[subprocess.Popen[str]]:
    """What ``docker run --read-only --user … -v models:/models:ro`` would start."""
    (image.root / "models").mkdir(exist_ok=True)
    command = image.command(
        [*image.entry, *image.words], f"--userspec={image.user}", binds={"/models": models}
    )
    process = subprocess.Popen(
        command, env=environment(image, ports), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def is_healthy(image: Stage, ports: list[int]) -> bool:
    """Run the image's own check, as an engine does."""
    command = image.command(image.health, f"--userspec={image.user}")
    return (
        subprocess.run(command, env=environment(image, ports), capture_output=True, check=False).returncode
        == 0
    )


def test_the_image_serves_on_a_root_that_nobody_can_write_to(image: Stage, models: Path) -> None:
    ports = free_ports(2)
    assert image.user.split(":")[0] not in ("0", "root")
    assert not is_healthy(image, ports), "nothing serves yet"
    with container(image, models, ports) as process:
        until = time.monotonic() + seconds_left()
        while not is_healthy(image, ports):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until, "it does not become healthy"
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "Uid:\t10001\t10001" in status
        inputs = {name: _plain(values) for name, values in field_inputs(2).items()}
        assert len(predicted(ports[0], inputs)) == 2
        process.send_signal(signal.Signals[image.stop_signal])
        said, _ = process.communicate()
    assert process.returncode == 0, said
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert any(line.get("event") == "draining" for line in lines), said
    # Kernels were found as the build had compiled them: others could not have been kept, which is said.
    assert "compil" not in said
    assert os.listdir(image.root / "models") == []


def predicted(port: int, inputs: dict[str, object]) -> list[object]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/models/clicks:predict",
        json.dumps({"inputs": inputs}).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            outputs: list[object] = json.load(answer)["outputs"]
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read()) from error
    return outputs


def _plain(values: np.ndarray) -> object:
    texts = values.astype(np.bytes_).astype(np.str_) if values.dtype == object else values
    plain: object = texts.tolist()
    return plain
