"""How many processors the affinity mask and cgroup quotas leave."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base import cpus


@pytest.mark.parametrize(
    ("text", "processors"),
    [
        ("max 100000\n", None),
        ("150000 100000\n", 1.5),
        ("50000 100000\n", 0.5),
        ("200000\n", 2.0),
        ("", None),
        ("0 100000", None),
        ("100000 0", None),
        ("nonsense here", None),
    ],
)
def test_version_2_quota(text: str, processors: float | None) -> None:
    assert cpus.parse_cpu_max(text) == processors


@pytest.mark.parametrize(
    ("quota", "period", "processors"),
    [("-1\n", "100000\n", None), ("250000\n", "100000\n", 2.5), ("0", "100000", None), ("", "", None)],
)
def test_version_1_quota(quota: str, period: str, processors: float | None) -> None:
    assert cpus.parse_cfs(quota, period) == processors


@pytest.mark.parametrize(
    ("memberships", "folders"),
    [
        ("0::/\n", ["."]),
        ("0::/a/b\n", ["a/b", "a", "."]),
        (
            "4:cpu,cpuacct:/docker/x\n7:memory:/m\n",
            ["cpu,cpuacct/docker/x", "cpu,cpuacct/docker", "cpu,cpuacct"],
        ),
        ("1:name=systemd:/\n", []),
        ("", []),
        ("garbage\n", []),
    ],
)
def test_folders_that_may_hold_a_quota(memberships: str, folders: list[str]) -> None:
    assert [str(folder) for folder in cpus.cgroup_folders(memberships)] == folders


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/pod/container\n")
    write(tmp_path / "mount/pod/container/cpu.max", "400000 100000")
    write(tmp_path / "mount/pod/cpu.max", "150000 100000")
    write(tmp_path / "mount/cpu.max", "max 100000")
    assert cpus.quota(tmp_path / "self", tmp_path / "mount") == 1.5


def test_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    write(tmp_path / "self", "3:cpu,cpuacct:/docker/0123\n")
    write(tmp_path / "mount/cpu,cpuacct/cpu.cfs_quota_us", "300000\n")
    write(tmp_path / "mount/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cpus.quota(tmp_path / "self", tmp_path / "mount") == 3.0


def test_no_cgroups_means_no_quota(tmp_path: Path) -> None:
    assert cpus.quota(tmp_path / "missing", tmp_path) is None


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    cpus._available_in.cache_clear()
    yield
    cpus._available_in.cache_clear()


@pytest.mark.parametrize(("quota", "processors"), [("250000", 2), ("50000", 1), ("max", 64)])
def test_available_is_whole_and_at_least_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, processors: int
) -> None:
    write(tmp_path / "self", "0::/\n")
    write(tmp_path / "cpu.max", f"{quota} 100000")
    monkeypatch.setattr(cpus, "_CGROUP_FILE", tmp_path / "self")
    monkeypatch.setattr(cpus, "_MOUNT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert cpus.available() == processors


def test_a_new_quota_counts_within_ten_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [1000.0]
    write(tmp_path / "self", "0::/\n")
    monkeypatch.setattr(cpus, "_CGROUP_FILE", tmp_path / "self")
    monkeypatch.setattr(cpus, "_MOUNT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    write(tmp_path / "cpu.max", "400000 100000")
    assert cpus.available() == 4
    write(tmp_path / "cpu.max", "200000 100000")
    assert cpus.available() == 4
    now[0] += 10
    assert cpus.available() == 2


def test_this_machine_has_at_least_one_and_no_more_than_its_mask() -> None:
    assert 1 <= cpus.available() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("total", "instances", "threads"), [(8, 2, 4), (7, 2, 3), (2, 8, 1), (1, 1, 1), (4, 0, 4)]
)
def test_threads_are_divided_and_each_instance_gets_at_least_one(
    total: int, instances: int, threads: int
) -> None:
    assert cpus.share(total, instances) == threads


def test_idle_time_is_read_for_each_processor() -> None:
    text = "cpu  3 3 3 900 3\ncpu0 1 2 3 400 5 6\ncpu1 1 2 3 500 5 6\nintr 7 8 9 10 11\nctxt 5\n"
    assert cpus.parse_idle(text) == {0: 400, 1: 500}
    assert cpus.parse_idle("") == {}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
def test_idle_time_of_this_machine_never_falls() -> None:
    before, after = cpus.idle_seconds(), cpus.idle_seconds()
    assert before.keys() == after.keys() == os.sched_getaffinity(0)
    assert all(after[cpu] >= before[cpu] for cpu in before)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "3"), ({"OMP_NUM_THREADS": "7"}, "7"), ({"OMP_NUM_THREADS": ""}, "3")],
    ids=["not set", "set by the user", "set to nothing, as by an empty variable of Compose"],
)
def test_libraries_get_their_share_of_threads_unless_the_user_has_set_it(
    given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "HEADRACE_OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment = cpus.environment(3)
    assert environment["OMP_NUM_THREADS"] == expected
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    of_a_child = cpus.environment(1)["OMP_NUM_THREADS"]  # as of a model's process that a worker starts
    assert of_a_child == ("7" if expected == "7" else "1")
