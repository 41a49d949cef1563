"""A server that serves signed versions only: what nobody vouches for never answers, and what did goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace.versions.layout import SIGNATURE_FILE
from headrace.versions.manifest import publish
from headrace.versions.signatures import new_keys, signer
from tests.conformance import sklearn_models
from tests.model_directories import affine
from tests.running_server import RunningServer

SETTINGS = "[versions]\nload_retry_seconds = 0.2\nload_attempts = 100\n"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    return tmp_path / "served"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    new_keys(tmp_path / "trainer.pem")
    return tmp_path / "trainer.pem"


both_ways = pytest.mark.parametrize("more", [(), ("--isolate",)], ids=["in process", "isolated"])


def made(place: Path, content: bytes | str) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if isinstance(content, bytes):
        (place / "model.onnx").write_bytes(content)
    else:
        (place / "model.py").write_text(content)
    return place


def serving(models: Path, keys: Path, *more: str) -> RunningServer:
    return RunningServer(models, "--signing-keys", f"{keys}.pub", *more)


def answer(server: RunningServer) -> object:
    status, body = server.post("/v1/models/m:predict", {"instances": [0.0]})
    return body["predictions"] if status == 200 else body


def state(server: RunningServer, version: int) -> str:
    """What is told of a version; "" while the server does not know of it."""
    told = json.loads(server.get("/v1/models/m")[1]).get("model_version_status", [])
    found = (one for one in told if one["version"] == str(version))
    return next((f"{one['state']} {one['status']['error_message']}" for one in found), "")


@both_ways
def test_only_signed_versions_are_served(
    tmp_path: Path, models: Path, keys: Path, more: tuple[str, ...]
) -> None:
    sign = signer(keys)
    publish(made(tmp_path / "made", affine(1.0, 1.0)), models / "m", sign=sign)
    (models / "m/headrace.toml").write_text(SETTINGS)
    with serving(models, keys, *more) as server:
        assert answer(server) == [1.0]
        unsigned = publish(made(tmp_path / "made", affine(1.0, 2.0)), models / "m")
        server.wait_for(lambda: "not signed" in state(server, 2), "the refusal")
        assert answer(server) == [1.0]
        sign(unsigned, "m", 2)
        server.wait_for(lambda: answer(server) == [2.0], "the version that is signed now")


@pytest.mark.rest
@both_ways
def test_a_signed_version_trusts_types_itself(
    tmp_path: Path, models: Path, keys: Path, more: tuple[str, ...]
) -> None:
    """A forest holds trees, which skops does not trust; the server's settings trust nothing."""
    place = made(tmp_path / "made", b"")
    (place / "model.onnx").unlink()
    sklearn_models.save(sklearn_models.forest)(place)
    publish(place, models / "forest", sign=signer(keys))
    (place / "trusted_types.txt").write_text("sklearn.tree._tree.Tree\n")
    publish(place, models / "forest", sign=signer(keys))
    with serving(models, keys, *more) as server:
        status, body = server.post("/v1/models/forest:predict", {"instances": [[5.1, 3.5, 1.4, 0.2]]})
        assert status == 200, body
        told = server.get("/v1/models/forest/versions/1")[1].decode()
        assert "AVAILABLE" not in told


def test_a_signed_version_cannot_be_given_another_number(tmp_path: Path, models: Path, keys: Path) -> None:
    publish(made(tmp_path / "made", affine(1.0, 1.0)), models / "m", sign=signer(keys))
    publish(made(tmp_path / "made", affine(1.0, 2.0)), models / "m", sign=signer(keys))
    with serving(models, keys) as server:
        assert answer(server) == [2.0]
        shutil.copytree(models / "m/1", models / "m/.3")
        (models / "m/.3").rename(models / "m/3")  # an old version as the newest one
        server.wait_for(
            lambda: "signed as version 1 of m, not as version 3" in state(server, 3), "the refusal"
        )
        assert answer(server) == [2.0]


def appear(draft: Path, models: Path) -> None:
    """Let a version appear as the second one, signed before as such."""
    draft.rename(models / "m/2")


@both_ways
def test_code_that_was_changed_is_not_run(
    tmp_path: Path, models: Path, keys: Path, more: tuple[str, ...]
) -> None:
    marker = tmp_path / "was_run"
    publish(made(tmp_path / "made", affine(1.0, 1.0)), models / "m", sign=signer(keys))
    second = publish(made(tmp_path / "made", "pass\n"), tmp_path / "drafts")
    signer(keys)(second, "m", 2)
    (second / "model.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with serving(models, keys, "--allow-code", *more) as server:
        appear(second, models)
        server.wait_for(lambda: "corrupt: model.py has" in state(server, 2), "the refusal")
        assert answer(server) == [1.0]
        assert not marker.exists()


def test_modules_that_nobody_signed_are_not_found(tmp_path: Path, models: Path, keys: Path) -> None:
    marker = tmp_path / "was_run"
    publish(made(tmp_path / "made", affine(1.0, 1.0)), models / "m", sign=signer(keys))
    code = "from . import helper\n\nclass Model:\n    pass\n"
    second = publish(made(tmp_path / "made", code), tmp_path / "drafts")
    signer(keys)(second, "m", 2)
    (second / "helper.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with serving(models, keys, "--allow-code") as server:
        appear(second, models)
        refusal = "model.py fails: ImportError: cannot import name 'helper'"
        server.wait_for(lambda: any(refusal in line for line in server.errors), "the refusal")
        assert answer(server) == [1.0]
        assert not marker.exists()


def test_without_the_setting_signatures_are_not_asked_for(tmp_path: Path, models: Path, keys: Path) -> None:
    version = publish(made(tmp_path / "made", affine(1.0, 1.0)), models / "m", sign=signer(keys))
    (version / SIGNATURE_FILE).write_bytes(b"nonsense")
    with RunningServer(models) as server:
        assert answer(server) == [1.0]
