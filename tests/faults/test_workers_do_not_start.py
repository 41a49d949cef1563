"""Several workers cannot start: one clear message, and the exit code of any start that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.workers.worker import ANOTHER_RELEASE
from tests.model_directories import write
from tests.running_server import RunningServer


def ended(models: Path, *options: str) -> tuple[int, list[str]]:
    """The exit code of a start, and the lines on standard error that are no log."""
    command = [sys.executable, "-m", "headrace", "serve", str(models), "--http-port", "0", "--grpc-port", "0"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("headrace: ")]


def test_a_port_that_is_taken(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server:
        port = str(server.http_port)
        for workers in ("1", "2"):
            code, said = ended(models, "--workers", workers, "--http-port", port)
            assert (code, len(said)) == (1, 1)  # it may be free later
            assert f"port {port} of 127.0.0.1 is taken" in said[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "0"), "--workers: expected a whole number, 1 or more, got 0"),
        (("--workers", "many"), "--workers: expected a whole number, or auto, got 'many'"),
        (("--workers", "300"), "--workers: expected a whole number, 1 to 256, got 300"),
        (
            ("--workers", "2", "--worker-timeout-seconds", "0.5"),
            "--worker-timeout-seconds: expected at least 1, got 0.5",
        ),
        (
            ("--workers", "2", "--grpc-server", "grpcio"),
            "--grpc-server: expected h2corn with workers > 1: grpcio cannot accept on the workers' sockets; "
            "or workers = 1, got 'grpcio'",
        ),
    ],
)
def test_a_setting_that_is_wrong(models: Path, options: tuple[str, ...], message: str) -> None:
    code, said = ended(models, *options)
    assert (code, said) == (2, [f"headrace: {message}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense = true\n", "nonsense: unknown setting"),
        ('[store]\nkind = "memory"\n[spaces.items]\ndimension = 2\n', "store.kind: expected one that"),
    ],
)
def test_errors_that_only_a_worker_finds_end_the_server(
    text: str, message: str, models: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "archive.toml"
    archive.write_text(text)
    code, said = ended(models, "--workers", "2", "--archive", str(archive))
    assert (code, len(said)) == (2, 1)
    assert message in said[0]


def test_errors_that_a_worker_finds_before_its_setup_end_the_server(models: Path, tmp_path: Path) -> None:
    for options, message in (
        (("--signing-keys", str(tmp_path / "missing.pem")), "missing.pem cannot be read"),
        (("--trusted-owners", "nobody-of-this-name"), "--trusted-owners: expected users of this machine"),
    ):
        code, said = ended(models, "--workers", "2", *options)
        assert (code, len(said)) == (2, 1)
        assert message in said[0]


def test_a_worker_of_another_release_says_so(models: Path, tmp_path: Path) -> None:
    """As after an update of what is installed, under a server that runs."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'headrace.cli.worker' in sys.orig_argv:\n    from headrace.workers import messages\n"
        "    messages.RELEASE = 'another'\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        code, said = ended(models, "--workers", "2")
    assert code == 2
    assert said == [f"headrace: {ANOTHER_RELEASE}"]


CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"


def test_models_that_end_every_worker_end_the_server(models: Path) -> None:
    write(models, "crashes", 1, CRASHES)
    code, said = ended(models, "--workers", "2", "--allow-code")  # it gives up, and does not go on for ever
    assert (code, len(said)) == (1, 1)
    assert "workers have ended within a minute before they were ready" in said[0]
    assert said[0].endswith("the last one was ended by SIGKILL")
