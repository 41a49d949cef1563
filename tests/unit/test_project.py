"""The project's own frame: its package, its tools, its metadata."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tomllib
from importlib.metadata import requires, version
from pathlib import Path
from types import ModuleType

import headrace

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


def test_every_ignored_rule_has_its_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    ignored = tomllib.loads(text)["tool"]["ruff"]["lint"]["ignore"]
    for rule in ignored:
        line = next(line for line in text.splitlines() if line.strip().startswith(f'"{rule}",'))
        assert "#" in line, f"{rule} is ignored without a reason"


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


def test_the_ninetieth_percentile_is_what_nine_of_ten_do_not_exceed() -> None:
    budget = size_budget()
    assert budget.percentile_90(range(1, 11)) == 10
    assert budget.percentile_90([7]) == 7
    assert budget.percentile_90([]) == 0
