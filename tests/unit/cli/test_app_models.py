"""A directory of models for the endpoints of an ``app.py``: its versions, and what keeps them current."""

from __future__ import annotations

import shutil
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
    return sorted(str(one.parent.relative_to(directory)) for one in directory.rglob("model.py"))


def test_each_endpoint_is_a_model_whatever_its_name(tmp_path: Path) -> None:
    with directory_of(written(tmp_path), reload=False) as directory:
        assert models_in(directory) == ["1.py/1", "second/1"]
    assert not directory.exists()


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


def test_old_versions_are_removed(tmp_path: Path) -> None:
    with directory_of(written(tmp_path), reload=True) as directory:
        written(tmp_path, APP + "# 2\n")
        until(lambda: models_in(directory) == ["1.py/1", "1.py/2", "second/1", "second/2"])
        written(tmp_path, APP.partition("@headrace.endpoint\n")[0])
        until(lambda: models_in(directory) == ["1.py/2", "1.py/3"])


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
