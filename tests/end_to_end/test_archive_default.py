"""A default that is moved by ``headrace archive default`` while a server answers from the space."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from headrace import example
from tests.running_server import RunningServer


@pytest.mark.rest
def test_a_running_server_answers_from_the_version_that_the_default_was_moved_to(tmp_path: Path) -> None:
    example.write(tmp_path / "models")
    toml, file = tmp_path / "archive.toml", tmp_path / "users.csv"
    toml.write_text("[tables.users]\n")

    def archive(verb: str, *words: str) -> None:
        command = [sys.executable, "-m", "headrace", "archive", verb, *words, "--archive", str(toml)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    file.write_text("user_id,age\na,30\nb,31\n")
    archive("load", "users", str(file))
    with RunningServer(tmp_path / "models", "--archive", str(toml)) as server:

        def answer() -> dict[str, object]:
            url = f"http://127.0.0.1:{server.http_port}/v1/archive/users:lookup"
            with urllib.request.urlopen(url, json.dumps({"keys": ["a", "b"]}).encode(), timeout=30) as said:
                read: dict[str, object] = json.load(said)
            return read

        before = {"columns": {"age": [30, 31]}, "found": [True, True], "version": 1}
        assert answer() == before
        file.write_text("user_id,agee\na,40\n")
        archive("load", "users", str(file), "--new-columns")
        assert answer() == before
        archive("default", "users", "2", "--fewer-keys")
        wrong = {"columns": {"agee": [40, 0]}, "found": [True, False], "version": 2}
        server.wait_for(lambda: answer() == wrong, "the server to follow the default")
        archive("default", "users", "1")
        server.wait_for(lambda: answer() == before, "the server to follow the default back")
