"""Versions that are half-written, damaged, or cannot be loaded: the one before them goes on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from headrace.versions.manifest import publish
from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import affine, write
from tests.running_server import RunningServer

RETRY_SOON = "[versions]\nload_retry_seconds = 0.2\nload_attempts = 100\n"


def answer(server: RunningServer, model: str) -> object:
    status, body = server.post(f"/v1/models/{model}:predict", {"instances": [0.0]})
    return body["predictions"] if status == 200 else body


def state(server: RunningServer, model: str, version: int) -> str:
    """The state of one version, as TensorFlow Serving tells it; "" while the server does not know of it."""
    status, body = server.get(f"/v1/models/{model}")
    assert status == 200
    import json

    for one in json.loads(body)["model_version_status"]:
        if one["version"] == str(version):
            return f"{one['state']} {one['status']['error_message']}"
    return ""


def gone_through(server: RunningServer) -> None:
    """Wait until the server has looked at the directory again, by publishing a model beside it."""
    directory = Path(server.process.args[4])  # type: ignore[index, arg-type]
    write(directory, "marker", 1, affine(1.0, 0.0))
    server.wait_for(lambda: server.get("/v2/models/marker/ready")[0] == 200, "the next look at the directory")


@pytest.mark.parametrize("what", ["an empty directory", "no model in it", "a draft", "a file", "no number"])
def test_incomplete_versions_are_never_served(models: Path, what: str) -> None:
    write(models, "m", 1, affine(1.0, 1.0), RETRY_SOON)
    with RunningServer(models) as server:
        if what == "an empty directory":
            (models / "m/2").mkdir()
        elif what == "no model in it":
            (models / "m/2").mkdir()
            (models / "m/2/model.onnx.part").write_bytes(affine(1.0, 2.0)[:20])
        elif what == "a draft":
            shutil.copytree(models / "m/1", models / "m/.publishing-2")
        elif what == "a file":
            (models / "m/2").write_bytes(affine(1.0, 2.0))
        else:
            shutil.copytree(models / "m/1", models / "m/two")
        gone_through(server)
        assert answer(server, "m") == [1.0]
        assert server.get("/v2/models/m/versions/2/ready")[0] != 200
        assert server.get("/v2/models/m/ready")[0] == 200
        does_it_still_serve(server)


def test_a_version_that_is_written_slowly_is_served_once_it_is_whole(models: Path) -> None:
    write(models, "m", 1, affine(1.0, 1.0), RETRY_SOON)
    with RunningServer(models) as server:
        whole = affine(1.0, 2.0)
        directory = models / "m/2"
        directory.mkdir()
        with (directory / "model.onnx").open("wb") as file:
            file.write(whole[: len(whole) // 2])
            file.flush()
            server.wait_for(lambda: state(server, "m", 2) != "", "the half-written version to be tried")
            assert answer(server, "m") == [1.0]
            file.write(whole[len(whole) // 2 :])
        server.wait_for(lambda: answer(server, "m") == [2.0], "the whole version")
        does_it_still_serve(server)


@pytest.mark.parametrize("what", ["manifest", "checksum", "missing file", "newer format"])
def test_a_version_that_is_not_what_its_manifest_says_is_not_loaded(models: Path, what: str) -> None:
    write(models, "m", 1, affine(1.0, 1.0), RETRY_SOON)
    with RunningServer(models) as server:
        elsewhere = models.parent / "elsewhere"
        version = publish(lambda path: (path / "model.onnx").write_bytes(affine(1.0, 2.0)), elsewhere, 2)
        (manifest,) = version.glob("*.json")
        if what == "manifest":
            manifest.write_bytes(b"\x00garbage")
        elif what == "checksum":
            content = bytearray((version / "model.onnx").read_bytes())
            content[-1] ^= 1
            (version / "model.onnx").write_bytes(content)
        elif what == "missing file":
            (version / "model.onnx").rename(version / "other.onnx")
        else:
            manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
        version.rename(models / "m/2")
        server.wait_for(lambda: state(server, "m", 2).strip() not in {"", "START", "LOADING"}, "an attempt")
        assert answer(server, "m") == [1.0]
        server.wait_for(
            lambda: any("warning" in line and "m version 2" in line for line in server.errors), "a warning"
        )
        does_it_still_serve(server)
        shutil.rmtree(models / "m/2")  # and the way out: publish it anew
        publish(lambda path: (path / "model.onnx").write_bytes(affine(1.0, 3.0)), models / "m", 3)
        server.wait_for(lambda: answer(server, "m") == [3.0], "the next version")


def test_a_load_that_fails_is_retried_until_it_succeeds(models: Path) -> None:
    write(models, "m", 1, affine(1.0, 1.0), RETRY_SOON)
    write(models, "alone", 1, b"not a model", RETRY_SOON)
    with RunningServer(models) as server:
        broken = write(models, "m", 2, b"not a model either")
        server.wait_for(lambda: "ONNX" in state(server, "m", 2), "the error of the failed load")
        assert answer(server, "m") == [1.0]
        assert "ONNX" in state(server, "alone", 1)
        does_it_still_serve(server)  # readiness included: one bad model or version turns nothing off
        (broken / "model.onnx").write_bytes(affine(1.0, 2.0))
        server.wait_for(lambda: answer(server, "m") == [2.0], "the repaired version")
        (models / "alone/1/model.onnx").write_bytes(affine(1.0, 7.0))
        server.wait_for(lambda: answer(server, "alone") == [7.0], "the repaired model")
        does_it_still_serve(server)


@pytest.mark.rest
def test_permanent_load_errors_are_not_retried_until_the_settings_change(models: Path) -> None:
    import skops.io

    from tests.conformance.sklearn_models import forest

    write(models, "m", 1, affine(1.0, 1.0), RETRY_SOON)
    (models / "trees/1").mkdir(parents=True)
    skops.io.dump(forest(), models / "trees/1/model.skops")
    settings = models / "trees/headrace.toml"
    settings.write_text(RETRY_SOON)
    with RunningServer(models) as server:
        assert "types that are not trusted" in state(server, "trees", 1)
        broken = write(models, "m", 2, b"not a model")  # which is tried again and again meanwhile
        server.wait_for(lambda: attempts(server, "m", 2) >= 3, "some attempts at another version")
        assert attempts(server, "trees", 1) == 1
        trusted = '[runtime]\ntrusted = ["sklearn.tree._tree.Tree"]\n'
        settings.write_text(RETRY_SOON + trusted)
        server.wait_for(lambda: "AVAILABLE" in state(server, "trees", 1), "the version, once it is trusted")
        (broken / "model.onnx").write_bytes(affine(1.0, 2.0))
        server.wait_for(lambda: answer(server, "m") == [2.0], "the repaired version")
        does_it_still_serve(server)


def attempts(server: RunningServer, model: str, version: int) -> int:
    """How often a version has been tried."""
    _, metrics = server.get("/metrics")
    pattern = rf'^headrace_load_attempts{{model="{model}",version="{version}"}} (\d+)'
    found = re.search(pattern, metrics.decode() if isinstance(metrics, bytes) else metrics, re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_directory_that_vanishes_unloads_nothing(models: Path) -> None:
    write(models, "m", 1, affine(1.0, 1.0))
    with RunningServer(models) as server:
        aside = models.rename(models.parent / "aside")
        server.wait_for(
            lambda: any("warning" in line or "error" in line for line in server.errors), "a word about it"
        )
        does_it_still_serve(server)
        aside.rename(models)
        gone_through(server)
        assert answer(server, "m") == [1.0]
        does_it_still_serve(server)


def test_of_many_bad_models_each_is_told_in_the_log(models: Path) -> None:
    for number in range(12):
        write(models, f"bad{number}", 1, affine(1.0, 1.0)[:20], "[versions]\nload_attempts = 1\n")
    with RunningServer(models) as server:
        server.wait_for(
            lambda: all(
                any(f"bad{number} version 1 failed" in line for line in server.errors) for number in range(12)
            ),
            "a line about each of them",
        )
        does_it_still_serve(server)
