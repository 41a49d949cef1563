"""The project's own frame: its package, its tools, its metadata."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires, version
from pathlib import Path
from types import ModuleType

import pytest

import headrace
from headrace.runtimes.registry import RUNTIMES

ROOT = Path(__file__).resolve().parents[2]


def size_budget() -> ModuleType:
    spec = importlib.util.spec_from_file_location("size_budget", ROOT / "tools/size_budget.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["size_budget"] = module
    spec.loader.exec_module(module)
    return module


def function(text: str) -> ast.FunctionDef:
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def test_the_installed_package_has_the_version_that_the_code_says() -> None:
    assert version("headrace") == headrace.__version__


def test_the_core_needs_only_seven_packages() -> None:
    core = [line for line in requires("headrace") or [] if "extra ==" not in line]
    assert len(core) == 7


@pytest.mark.rest
def test_what_is_released_as_source_imports_nothing_that_it_lacks() -> None:
    """``benchmarks`` is not among it: what a demonstration or a test needs is elsewhere."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    released = [ROOT / name for name in build["targets"]["sdist"]["include"] if (ROOT / name).is_dir()]
    lacking = {one.name for one in ROOT.iterdir() if one.is_dir() and one not in released}
    imported = set()
    for file in (path for home in released for path in home.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            imported |= {(file.relative_to(ROOT).as_posix(), name) for name in names}
    assert "benchmarks" in lacking
    assert [(file, name) for file, name in imported if name.partition(".")[0] in lacking] == []


def test_no_left_over_file_of_a_patch_or_merge_is_committed() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the released source has no history")
    command = ["git", "-C", ROOT, "ls-files", "*.orig", "*.rej"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


def test_the_page_of_the_architecture_has_the_layers_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    checked = [set(re.findall(r"\w+", layer)) for layer in contracts[0]["layers"]]
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (`[^|]+`) \|", page.partition("## Packages")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert [{"__main__"}, *(set(re.findall(r"\w+", row)) for row in rows)] == checked


def test_every_ignored_rule_has_its_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    ignored = tomllib.loads(text)["tool"]["ruff"]["lint"]["ignore"]
    for rule in ignored:
        line = next(line for line in text.splitlines() if line.strip().startswith(f'"{rule}",'))
        assert "#" in line, f"{rule} is ignored without a reason"


def make_install(directory: Path, *variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``make install`` where an environment by the Python of these tests is up to date."""
    environment = directory / ".venv"
    (environment / "bin").mkdir(parents=True, exist_ok=True)
    (directory / "pyproject.toml").touch()
    (environment / ".installed").touch()
    (environment / "bin/python").unlink(missing_ok=True)
    (environment / "bin/python").symlink_to(sys.executable)
    command = ["make", "-f", ROOT / "Makefile", "install", *variables]
    environ = {"PATH": os.environ["PATH"]}  # nothing of a make that runs these tests
    return subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False)


def test_make_uses_no_environment_of_another_python_than_the_one_it_is_told(tmp_path: Path) -> None:
    assert make_install(tmp_path).returncode == 0
    assert make_install(tmp_path, f"PYTHON={sys.executable}").returncode == 0
    result = make_install(tmp_path, "PYTHON=echo")  # says no version that there is
    assert result.returncode == 2
    assert "which is not echo: remove it, or make test-python PYTHON=echo" in result.stderr


def test_types_are_checked_for_the_python_that_checks_them() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    # NumPy's stubs are written for the Python that they install on, and are misread as an older one's.
    assert "python_version" not in tools["mypy"]


def test_the_size_budget_counts_what_a_caller_passes() -> None:
    budget = size_budget()
    assert budget.parameters(function("def f(self, a, /, b, *args, c, **kwargs): ...")) == 3
    assert budget.parameters(function("def f(): ...")) == 0


def test_the_size_budget_stops_a_long_function(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("def f():\n" + "    x = 1\n" * 60)
    result = subprocess.run(
        [sys.executable, ROOT / "tools/size_budget.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "OVER   61" in result.stdout


def test_the_size_budget_lets_a_function_of_sixty_lines_pass(tmp_path: Path) -> None:
    (tmp_path / "fits.py").write_text("def f():\n" + "    x = 1\n" * 59)
    subprocess.run([sys.executable, ROOT / "tools/size_budget.py", tmp_path], capture_output=True, check=True)


@pytest.mark.parametrize(
    ("first", "lines", "code"),
    [
        ("# Longer than 500 lines: one class, whose methods share their state.", 700, 0),
        ("# Longer than 500 lines: one class, whose methods share their state.", 701, 1),
        ("# Longer than 500 lines: ", 501, 1),
        ("x = 1", 501, 1),
        ("x = 1\n# Longer than 500 lines: the reason is not in the first line.", 501, 1),
        ("x = 1", 500, 0),
    ],
)
def test_the_size_budget_allows_a_file_with_a_reason_700_lines(
    tmp_path: Path, first: str, lines: int, code: int
) -> None:
    text = f"{first}\n"
    (tmp_path / "long.py").write_text(text + "x = 1\n" * (lines - text.count("\n")))
    result = subprocess.run(
        [sys.executable, ROOT / "tools/size_budget.py", tmp_path], capture_output=True, check=False
    )
    assert result.returncode == code


def test_the_ninetieth_percentile_is_what_nine_of_ten_do_not_exceed() -> None:
    budget = size_budget()
    assert budget.percentile_90(range(1, 11)) == 10
    assert budget.percentile_90([7]) == 7
    assert budget.percentile_90([]) == 0


def test_each_extra_that_is_named_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {one.extra: "registry.py" for one in RUNTIMES if one.extra}
    naming = re.compile(r'headrace\[([\w,-]+)\]|needs_extra\(\s*[^,]+,\s*"([\w,-]+)"')
    for file in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "src").rglob("*.py")]:
        for found in naming.findall(file.read_text("utf-8")):
            named |= dict.fromkeys("".join(found).split(","), file.name)
    assert {"train", "kafka", "tls", "sklearn"} <= named.keys()
    assert {extra: where for extra, where in named.items() if extra not in extras} == {}
