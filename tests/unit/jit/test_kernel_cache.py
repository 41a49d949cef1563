"""Machine code on disk is that of the sources."""

from __future__ import annotations

import importlib.util
import pickle  # noqa: TID251  # numba's index of a cache is one
import sys
from pathlib import Path
from types import ModuleType

import numba
import pytest

from headrace.ctr.models import vocabulary
from headrace.jit import kernel_cache
from headrace.stream import schema

SOURCE = """
from headrace.jit.kernel_cache import cached

@cached(nogil=True)
def twice(number):
    return number + number
"""


def imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kept_kernel", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_kernel_is_kept_until_a_source_beside_it_changes(tmp_path: Path) -> None:
    file, other = tmp_path / "kept_kernel.py", tmp_path / "other.py"
    file.write_text(SOURCE)
    other.write_text("WHAT = 1")
    assert imported(file).twice(4) == 8
    again = imported(file).twice
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1
    other.write_text("WHAT = 2")
    in_a_new_process()
    anew = imported(file).twice
    assert anew(4) == 8
    assert sum(anew.stats.cache_hits.values()) == 0


def in_a_new_process() -> None:
    kernel_cache._fingerprint.cache_clear()
    kernel_cache._imported.cache_clear()


def test_of_two_processes_that_keep_a_kernel_at_once_none_takes_the_others_machine_code(
    tmp_path: Path,
) -> None:
    """Each finds nothing, and keeps its own as the first: one's file, with the index of the other."""
    file = tmp_path / "kept_kernel.py"
    file.write_text(SOURCE)
    kept = tmp_path / "__pycache__"
    wholes, halves = imported(file).twice, imported(file).twice
    assert wholes(4) == 8
    (index,) = kept.glob("*.nbi")
    of_wholes = index.read_bytes()
    index.unlink()
    assert halves(0.5) == 1.0
    index.write_bytes(of_wholes)
    for number, wanted in ((4, "8"), (0.5, "1.0")):
        assert repr(imported(file).twice(number)) == wanted
        again = imported(file).twice
        assert repr(again(number)) == wanted
        assert sum(again.stats.cache_hits.values()) == 1


def test_kernels_of_a_release_with_other_modules_are_recompiled(tmp_path: Path) -> None:
    file = tmp_path / "kept_kernel.py"
    file.write_text(SOURCE)
    assert imported(file).twice(4) == 8
    (index,) = (tmp_path / "__pycache__").glob("*.nbi")
    with index.open("rb") as opened:
        version = pickle.load(opened)
    gone = b"cheadrace.gone\nStanding\n."  # a pickle that names a module of an older release
    index.write_bytes(pickle.dumps(version) + gone)
    assert imported(file).twice(4) == 8
    again = imported(file).twice
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "another module"])
def test_a_damaged_file_is_reported_and_rewritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, damage: str
) -> None:
    """Numba renames files into place without fsync: a loss of power may leave any part of them."""
    file = tmp_path / "kept_kernel.py"
    file.write_text(SOURCE)
    assert imported(file).twice(4) == 8
    (damaged,) = (tmp_path / "__pycache__").glob(f"*.{kind}")
    content = damaged.read_bytes()
    contents = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "garbage": b"\xff" * len(content),
        "another module": pickle.dumps(numba.__version__) * (kind == "nbi") + b"cheadrace.gone\nGone\n.",
    }
    damaged.write_bytes(contents[damage])
    assert imported(file).twice(4) == 8
    if (kind, damage) != ("nbi", "another module"):  # left by another release, which is no damage
        assert "a file of the kernel cache is damaged" in caplog.text
    again = imported(file).twice
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1


@pytest.mark.parametrize(
    "said",
    [
        "from kept_package.below.limits import MOST",
        "from kept_package.below.limits import (\n    LEAST,\n    MOST,\n)",
        "from kept_package.below import limits\nMOST = limits.MOST",
        "import kept_package.below.limits as limits\nMOST = limits.MOST",
        "from kept_package.below.through import MOST",
    ],
)
def test_a_constant_of_another_directory_that_changes_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A constant is compiled into the kernel, which otherwise goes on giving the old answer."""
    package = tmp_path / "kept_package"
    for place in (package, package / "below", package / "kernels"):
        place.mkdir()
        (place / "__init__.py").touch()
    (package / "below/through.py").write_text("from kept_package.below.limits import MOST")
    source = SOURCE.replace("number + number", "min(number, MOST)").replace("\n@cached", f"{said}\n\n@cached")
    (package / "kernels/kernel.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for most in (3, 5):
        (package / "below/limits.py").write_text(f"LEAST = 0\nMOST = {most}{' ' * most}\n")
        for name in [name for name in sys.modules if name.startswith("kept_package")]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        in_a_new_process()
        assert importlib.import_module("kept_package.kernels.kernel").twice(10) == most


def test_every_constant_of_our_own_kernels_counts() -> None:
    """``ctr.vocabulary`` reads ``stream.schema.MOST_ADMIT``."""
    assert Path(schema.__file__) in kernel_cache._imported(Path(vocabulary.__file__))
