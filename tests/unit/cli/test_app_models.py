"""A directory of models for the endpoints of an ``app.py``: its versions, and what keeps them current."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.cli.app_models import directory_of, publish_endpoints
from tests.waiting import until


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave other tests neither the folders nor the modules of an app."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} & {"app"} - before:
        del sys.modules[name]


APP = """
import headrace

@headrace.endpoint(name="1.py")
def first(x: float) -> float:
    return x

@headrace.endpoint
def second(x: float) -> float:
    return x
"""


def written(folder: Path, app: str = APP) -> Path:
    (folder / "draft").write_text(app)
    return (folder / "draft").rename(folder / "app.py")


def models_in(directory: Path) -> list[str]:
    found = os.walk(directory)  # unlike `rglob`, it passes over folders that are renamed meanwhile
    return sorted(os.path.relpath(folder, directory) for folder, _, files in found if "model.py" in files)


def test_each_endpoint_is_a_model_whatever_its_name(tmp_path: Path) -> None:
    with directory_of(written(tmp_path), reload=False) as directory:
        assert models_in(directory) == ["1.py/1", "second/1"]
    assert not directory.exists()


def test_a_file_that_serves_itself_is_refused_with_the_way_out(tmp_path: Path) -> None:
    file = written(tmp_path, f"{APP}\nheadrace.serve(__file__)\n")
    with (
        pytest.raises(ConfigError, match=r"^app\.py: serves itself .* below `if __name__ == '__main__':`$"),
        directory_of(file, reload=False),
    ):
        pass
    once = f"{APP}\nif __name__ == '__main__':\n    headrace.serve(__file__)\n"
    with directory_of(written(tmp_path, once), reload=False) as directory:
        assert models_in(directory) == ["1.py/1", "second/1"]


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("import sys\nsys.exit('set KEY')\n", "app.py:2: SystemExit: set KEY"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
    ],
)
def test_a_file_that_ends_the_program_does_not_end_reloads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mistake: str, told: str
) -> None:
    with directory_of(written(tmp_path), reload=True) as directory:
        written(tmp_path, mistake)
        until(lambda: "app.py has changed, but the previous version keeps serving" in caplog.text)
        assert told in caplog.text
        assert models_in(directory) == ["1.py/1", "second/1"]
        written(tmp_path)
        until(lambda: models_in(directory) == ["1.py/1", "1.py/3", "second/1", "second/3"])


def test_a_version_that_cannot_be_written_does_not_end_reloads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with directory_of(written(tmp_path), reload=True) as directory:
        drafts = directory / ".drafts"
        shutil.rmtree(drafts, ignore_errors=True)
        drafts.write_text("in the way")
        written(tmp_path, APP + "# 2\n")
        until(lambda: "the previous version keeps serving" in caplog.text)
        assert ".drafts" in caplog.text
        assert models_in(directory) == ["1.py/1", "second/1"]
        drafts.unlink()
        (drafts / "second").mkdir(parents=True)  # the remains of an attempt
        written(tmp_path, APP + "# 3\n")
        until(lambda: models_in(directory) == ["1.py/1", "1.py/3", "second/1", "second/3"])


def test_a_version_that_cannot_be_written_leaves_the_modules_of_the_one_before(tmp_path: Path) -> None:
    directory = tmp_path / "models"
    directory.mkdir()
    publish_endpoints(written(tmp_path), directory, 1)
    own = sys.modules["app"]
    (directory / ".drafts").write_text("in the way")
    with pytest.raises(ConfigError, match=r"\.drafts"):
        publish_endpoints(tmp_path / "app.py", directory, 2)
    assert sys.modules["app"] is own
    (directory / ".drafts").unlink()
    publish_endpoints(tmp_path / "app.py", directory, 3)
    assert sys.modules["app"] is not own


FULL = """
import resource, signal, sys
from pathlib import Path
from headrace.base.errors import ConfigError
from headrace.cli.app_models import publish_endpoints

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))  # as a full disk: writing fails
try:
    publish_endpoints(Path(sys.argv[1]), Path(sys.argv[2]), 1)
except ConfigError as error:
    print(error)
"""


def test_a_full_disk_is_that_of_the_models_not_that_of_the_file(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    command = [sys.executable, "-c", FULL, str(written(tmp_path)), str(models)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == (f"{models}: File too large\n", "")


def test_an_import_that_takes_long_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with directory_of(written(tmp_path), reload=True):
        end = tmp_path / "end"
        waits = f"while not pathlib.Path({str(end)!r}).exists():\n    time.sleep(0.01)\n"
        written(tmp_path, "import pathlib, time\n" + waits + APP)
        until(lambda: "app.py has changed, and is imported again" in caplog.text)
        assert "version 2 is loaded" not in caplog.text
        end.touch()
        until(lambda: "app.py has changed: version 2 is loaded" in caplog.text)


def test_old_versions_are_removed(tmp_path: Path) -> None:
    with directory_of(written(tmp_path), reload=True) as directory:
        written(tmp_path, APP + "# 2\n")
        until(lambda: models_in(directory) == ["1.py/1", "1.py/2", "second/1", "second/2"])
        written(tmp_path, APP.partition("@headrace.endpoint\n")[0])
        until(lambda: models_in(directory) == ["1.py/2", "1.py/3"])
        until(lambda: sorted(one.name for one in directory.glob(".*")) == [".2.py", ".3.py"])


def test_the_directory_of_a_server_that_was_killed_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    served = f"directory_of(Path({str(written(tmp_path))!r}), reload=False)"
    code = f"with {served} as directory:\n    print(directory, flush=True)\n    os._exit(9)\n"
    imports = "import os\nfrom pathlib import Path\nfrom headrace.cli.app_models import directory_of\n"
    killed = subprocess.run(
        [sys.executable, "-c", imports + code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    with directory_of(tmp_path / "app.py", reload=False):
        assert not left.exists()


def test_without_a_temporary_directory_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    said = r"temporary files: .*; set TMPDIR to a directory that can be written to"
    with pytest.raises(ConfigError, match=said), directory_of(written(tmp_path), reload=False):
        raise AssertionError


def test_a_file_that_is_not_there_is_named_with_what_is_wanted(tmp_path: Path) -> None:
    said = r"^DIR: .*nope\.py is not a file; name a Python file with endpoints, or a directory of models$"
    with pytest.raises(ConfigError, match=said), directory_of(tmp_path / "nope.py", reload=False):
        raise AssertionError
