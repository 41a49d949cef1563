"""A start imports what it needs: one verb, not all, and no package that serving does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace import example
from headrace.cli import common
from headrace.cli.main import build_parser, main

VERBS = {verb.prog: verb for verb in common.all_verbs(build_parser())}
WORDS = list(dict.fromkeys(name.split()[1] for name in VERBS))

BEFORE_IT_STARTS_OVER = """
import os, sys
def started_over(*_):
    print(*sys.modules, flush=True)
    os._exit(0)
os.execv = started_over
os.environ.pop("GLIBC_TUNABLES", None)
sys.argv[1:] = ["serve", *sys.argv[1:]]
from headrace.__main__ import main
main()
"""
WHERE_NO_PROGRAM_MAY_BE_STARTED = """
import os, sys
os.environ.pop("GLIBC_TUNABLES", None)
sys.executable = sys.argv[1]
sys.argv[1:] = ["serve", sys.argv[1], "--host", "nowhere.invalid"]
from headrace.__main__ import main
sys.exit(main())
"""
WHEN_IT_HAS_PARSED = """
import sys
from headrace.cli.main import build_parser
build_parser(["serve"]).parse_args(["serve", sys.argv[1]])
print(*sys.modules)
"""
NOT_TO_PARSE = {
    *("asyncio", "google.protobuf", "h2corn", "importlib.metadata", "numpy", "onnxruntime", "uvloop"),
}

WHEN_IT_SERVES = """
import asyncio, sys
from pathlib import Path
from headrace.config import ServerConfig
from headrace.server.server import Server
async def serve():
    server = Server(Path(sys.argv[1]), ServerConfig(http_port=0, grpc_port=0))
    await server.start()
    await server.engine.settle(60)
    assert server.engine.manager.default_version("half_plus_two") == 1
    print(*sys.modules, flush=True)
    await server.stop(lead=False)
asyncio.run(serve())
"""
NEVER = {
    *("grpc", "uvicorn", "prometheus_client", "numba", "llvmlite", "pyarrow", "sklearn", "skops", "onnx"),
    *("matplotlib", "polars", "pandas", "tensorflow", "keras", "tomli_w"),
    *("headrace.cli", "headrace.ctr", "headrace.profiling", "headrace.stream", "headrace.similarity"),
    *(
        "headrace.training",
        "headrace.archive",
        "headrace.frontends.archive",
        "headrace.storage.stores",
        "lmdb",
    ),
    *("headrace.workers", "headrace.isolation"),
    *("headrace.sealed_memory.keeper", "headrace.sealed_memory.keeper_client"),
}


@pytest.fixture
def served(tmp_path: Path) -> Path:
    example.write(tmp_path)
    return tmp_path


def ran(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        capture_output=True,
        check=False,
        text=True,
    )


def modules_of(program: str, directory: Path) -> set[str]:
    done = ran(program, directory)
    done.check_returncode()
    return set(done.stdout.split())


def test_a_server_starts_over_before_it_imports_anything_of_its_own(served: Path) -> None:
    modules = {name for name in modules_of(BEFORE_IT_STARTS_OVER, served) if name.startswith("headrace")}
    assert modules == {"headrace", "headrace.__main__"}


def test_a_server_parses_its_command_line_without_the_engine_and_the_other_verbs(served: Path) -> None:
    modules = modules_of(WHEN_IT_HAS_PARSED, served)
    assert not NOT_TO_PARSE & modules
    assert {word for word in WORDS if f"headrace.cli.{word}" in modules} == {"serve"}


def test_a_server_that_cannot_start_over_goes_on(served: Path) -> None:
    done = ran(WHERE_NO_PROGRAM_MAY_BE_STARTED, served)
    assert "nowhere.invalid" in done.stderr, "it has come to its ports"
    assert done.returncode == 2


def test_a_server_of_onnx_imports_no_extra_and_nothing_that_learns(served: Path) -> None:
    assert not NEVER & modules_of(WHEN_IT_SERVES, served)


@pytest.mark.parametrize("word", WORDS)
def test_a_verb_parsed_alone_has_the_same_help_as_among_all(word: str) -> None:
    alone = {verb.prog: verb.format_help() for verb in common.all_verbs(build_parser([word]))}
    assert alone == {name: VERBS[name].format_help() for name in VERBS if name.split()[1] == word}


@pytest.mark.parametrize("words", [["--help"], ["serv"]])
def test_the_help_and_what_refuses_a_wrong_word_name_all_verbs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    told = "".join(capsys.readouterr())
    assert [word for word in WORDS if word not in told] == []
