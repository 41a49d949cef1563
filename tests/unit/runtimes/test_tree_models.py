from __future__ import annotations

from pathlib import Path

import pytest

from headrace.runtimes.tree_models import open_library


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package whose import would fail."""
    home = tmp_path / "boosted"
    (home / "lib").mkdir(parents=True)
    (home / "__init__.py").write_text("raise SystemExit('nobody imports it')")
    monkeypatch.syspath_prepend(tmp_path)
    return home


def test_a_library_is_opened_without_importing_its_package() -> None:
    assert open_library("lightgbm", "lib_lightgbm").LGBM_GetLastError is not None


def test_a_package_that_is_not_installed_is_a_missing_module() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
        open_library("no_such_package", "lib")


def test_a_package_without_the_library_is_named(package: Path) -> None:
    with pytest.raises(ImportError, match="the package boosted has no libboosted"):
        open_library("boosted", "libboosted")


def test_a_library_that_cannot_be_opened_says_why(package: Path) -> None:
    (package / "lib" / "libboosted.so").write_bytes(b"not a library")
    with pytest.raises(ImportError, match=r"libboosted\.so cannot be opened: .*(invalid ELF|file too short)"):
        open_library("boosted", "libboosted")
