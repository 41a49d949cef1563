"""``headrace serve app.py``: functions are served, and again when the file changes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.running_server import RunningServer

APP = """
import headrace

@headrace.endpoint
def price(age: float, city: str) -> float:
    return 10 + age / 2 + (city == "oslo")
"""


def price(server: RunningServer, **row: object) -> object:
    status, answer = server.post("/v1/models/price:predict", {"instances": [row]})
    return answer["predictions"][0] if status == 200 else answer["error"]


@pytest.mark.rest
def test_a_function_is_served_and_served_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP)
    with RunningServer(file, "--reload") as server:
        assert price(server, age=4, city="oslo") == 13.0
        assert "age" in str(price(server, age="four", city="oslo"))
        file.write_text(APP.replace("10 +", "20 +"))
        server.wait_for(lambda: price(server, age=4, city="oslo") == 23.0, "the change")
        file.write_text(APP + "x = (\n")
        server.wait_for(
            lambda: any("SyntaxError" in line for line in server.errors), "the mistake to be told"
        )
        assert price(server, age=4, city="oslo") == 23.0
        file.write_text(APP.replace("def price", "def rate"))
        server.wait_for(lambda: server.get("/v1/models/rate")[0] == 200, "the new name")
        server.wait_for(lambda: "price" in str(price(server, age=4, city="oslo")), "the end of the old name")


def test_a_file_with_a_mistake_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def price(age: float) -> float: ...\n")
    command = [sys.executable, "-m", "headrace", "serve", str(tmp_path / "app.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "headrace: app.py: no endpoints; mark a function with @headrace.endpoint\n"


def test_a_file_that_changes_the_working_directory_does_not_move_other_files(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import os\nos.chdir('/')\n" + APP)
    (tmp_path / "server.toml").write_text('[access]\nfile = "keys.toml"\n')
    command = [sys.executable, "-m", "headrace", "serve", "app.py", "--config", "server.toml"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stderr.startswith(f"headrace: {tmp_path}/keys.toml cannot be read: ")


MEAN = """
import headrace

@headrace.endpoint(batch=True)
def mean(age: list[float]) -> list[float]:
    return [sum(age) / len(age)] * len(age)
"""


def lines_up_to(last: str, command: list[str]) -> list[str]:
    """Run a server until it has printed a text, or for a minute."""
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        watch = threading.Timer(60, server.kill)
        watch.start()
        try:
            for line in server.stdout:
                found.append(line)
                if last in line:
                    break
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate()
            watch.cancel()
    return found


@pytest.mark.rest
def test_a_server_has_the_name_of_its_file_and_its_way_out_is_one_for_it(tmp_path: Path) -> None:
    file, settings = tmp_path / "app.py", tmp_path / "settings.toml"
    file.write_text(MEAN)
    settings.write_text("[models.mean]\nbatching = false\n")
    command = [sys.executable, "-m", "headrace", "serve", str(file), "--http-port", "0", "--grpc-port", "0"]
    assert lines_up_to("headrace serves", command)[-1].startswith(f"headrace serves {file}, ")
    several = lines_up_to("headrace serves", [*command, "--workers", "2"])
    assert several[-1].startswith(f"headrace serves {file}, ")
    said = lines_up_to("depend on each other", command)[-1]
    assert "of an app.py: in the file of --config, under [models.NAME]" in said
    served = lines_up_to("version is ready", [*command, "--config", str(settings)])
    assert "model=mean" in served[-1]
