"""`headrace compile`: says what it compiles and where that is kept; what it cannot do is explained."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.archive.lookup import cache_kernels
from headrace.cli import compile as verb
from headrace.cli.main import main
from headrace.ctr.serving import scoring
from headrace.runtimes import vw
from headrace.storage.stores import lmdb_pages
from tests.conformance.ctr_models import write


def test_the_models_of_a_directory_are_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clicks" / "3").mkdir(parents=True)
    write(tmp_path / "clicks" / "3", "fm")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.ctr").write_text("not a model")
    (tmp_path / "other" / "1").mkdir(parents=True)
    assert main(["compile", str(tmp_path)]) == 1
    broken, compiled, where = capsys.readouterr().out.splitlines()
    assert broken.startswith("  broken/1 … failed: ")
    assert compiled.startswith("  clicks/3 … ")
    assert compiled.endswith(" s")
    assert where.startswith("kernels are kept in /")


def test_kernels_are_in_the_printed_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a model are kept beside their own sources, not beside those of the module that keeps them."""
    assert main(["compile", "--json", str(tmp_path)]) == 0
    directory = json.loads(capsys.readouterr().out)["directory"]
    for kernel in (scoring._sigmoids, cache_kernels.find):
        assert Path(kernel.stats.cache_path).is_relative_to(directory)


def test_a_directory_without_click_models_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(tmp_path)]) == 0
    assert "has no click model and no Vowpal Wabbit model; nothing to compile" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere is not a directory"),
        ([".", "--factors", "8"], "--factors and --quantize cannot be combined with DIR"),
        (["--factors", "0"], "factors: expected"),
    ],
)
def test_invalid_arguments_are_explained(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_without_a_directory_an_archives_kernels_are_compiled_too(tmp_path: Path) -> None:
    options = argparse.Namespace(models=None, factors=None, quantize=None)
    found = verb._kernels(options, tmp_path)
    assert next(found) == ("archive", verb._run_archives)
    assert next(found) == ("Vowpal Wabbit", vw.run_once)
    verb._run_archives()
    assert cache_kernels.find.signatures
    assert lmdb_pages.find.signatures


def test_a_feed_finds_its_kernels_compiled(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from headrace.cli.compile import _run_archives
from headrace.archive.windows import kernels
_run_archives()
ones = [kernels.scan, kernels.put_back, kernels.touch, kernels.enter, kernels.leave]
compiled = [list(one.signatures) for one in ones]
from tests.unit.archive.windows.test_feed import feed_of, opened, rows_of
with opened(Path(sys.argv[1])) as archive:
    feed = feed_of(archive)
    feed.take(rows_of(200))
    arrays, meta = feed.state()
    feed = feed_of(archive)
    feed.restore(arrays, meta)
    feed.take(rows_of(400).slice(200))
    feed.finish()
assert all(compiled), compiled
for one, before in zip(ones, compiled):
    assert one.signatures == before, (one, before, one.signatures)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
