"""How much memory may still be taken: the machine's or the cgroup's."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base import memory

MACHINE = "MemTotal: 100 kB\nMemAvailable:   1000 kB\n"
STAT = "anon 7\ninactive_file 50\nactive_file 30\ntotal_inactive_file 20\ntotal_active_file 10\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, 1_024_000),
        ("0::/a\n", {"a/memory.max": "500", "a/memory.current": "100", "a/memory.stat": STAT}, 480),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.current": "100", "a/memory.stat": STAT}, 1_024_000),
        ("0::/a/b\n", {"a/memory.max": "70", "a/memory.current": "100", "a/memory.stat": STAT}, 50),
        ("0::/a\n", {"a/memory.max": "10", "a/memory.current": "100", "a/memory.stat": ""}, 0),
        (
            "4:memory:/x\n",
            {
                "memory/memory.limit_in_bytes": "300",
                "memory/memory.usage_in_bytes": "200",
                "memory/memory.stat": STAT,
            },
            130,
        ),
    ],
    ids=["no group", "version 2", "no limit", "of the group above", "too much already", "version 1"],
)
def test_the_tightest_limit_counts_and_cached_files_do_not(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    write(tmp_path / "proc", {"meminfo": MACHINE, "self/cgroup": groups})
    write(tmp_path / "groups", files)
    assert memory.available_bytes(tmp_path / "proc", tmp_path / "groups") == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, 102_400),
        ("0::/a\n", {"a/memory.max": "500"}, 500),
        ("0::/a\n", {"a/memory.max": "max"}, 102_400),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "700"}, 700),
        ("4:memory:/x\n", {"memory/memory.limit_in_bytes": "300"}, 300),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, 102_400),
    ],
    ids=["no group", "version 2", "no limit", "of the group above", "version 1", "no limit of version 1"],
)
def test_the_smallest_limit_applies(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    write(tmp_path / "proc", {"meminfo": MACHINE, "self/cgroup": groups})
    write(tmp_path / "groups", files)
    assert memory.allowed_bytes(tmp_path / "proc", tmp_path / "groups") == expected


@pytest.mark.parametrize(
    ("wanted", "allowed", "part", "least", "expected"),
    [
        (512, None, 4, 64, 512),
        (512, 8000, 4, 64, 512),
        (512, 2048, 4, 64, 512),
        (512, 1000, 4, 64, 250),
        (512, 1000, 8, 64, 125),
        (512, 100, 4, 64, 64),
        (512, 0, 4, 64, 64),
    ],
    ids=["nobody knows", "plenty", "just enough", "a quarter", "an eighth", "the least", "nothing"],
)
def test_a_budget_is_capped_at_a_fraction_of_the_allowed_memory(
    wanted: int, allowed: int | None, part: int, least: int, expected: int
) -> None:
    assert memory.at_most(wanted, allowed, part, least) == expected


def test_without_readable_files_the_memory_is_unknown(tmp_path: Path) -> None:
    assert memory.available_bytes(tmp_path, tmp_path) is None
    assert memory.allowed_bytes(tmp_path, tmp_path) is None


def test_this_machine_tells() -> None:
    found, allowed = memory.available_bytes(), memory.allowed_bytes()
    assert found is not None
    assert allowed is not None
    assert 2**20 < found <= allowed
