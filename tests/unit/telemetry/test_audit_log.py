"""The audit log: whole lines of several processes, and nothing is done that is not told."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigError, NotFound, Unavailable
from headrace.telemetry import audit_log
from headrace.telemetry.audit_log import AuditLog

BY: dict[str, str | int] = {"caller": "ops", "address": "10.0.0.1:5"}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_an_action_is_logged_before_and_after_it(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    with log.telling("unload", "ctr", BY):
        (asked,) = lines(tmp_path / "audit")
    first, last = lines(tmp_path / "audit")
    assert first == asked
    assert first["id"] == last["id"]
    assert (first["stage"], last["stage"], last["result"]) == ("asked", "ended", "done")
    for line in (first, last):
        assert (line["action"], line["on"], line["by"], line["pid"]) == ("unload", "ctr", BY, os.getpid())
        assert line["time"].endswith("Z")


def test_a_failed_action_is_logged_with_the_reason(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    with pytest.raises(NotFound), log.telling("load", "x\n{}" * 500, BY):
        raise NotFound("no model")
    assert lines(tmp_path / "audit")[1]["result"] == "failed: NotFound: no model"
    assert len(lines(tmp_path / "audit")[1]["on"]) == 500


def test_an_action_that_cannot_be_logged_is_not_performed(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    log = AuditLog(file)
    file.unlink()
    file.mkdir()
    done = False
    with pytest.raises(Unavailable, match="cannot be written") as raised, log.telling("load", "m", BY):
        done = True
    assert not done
    assert str(tmp_path) in raised.value.message
    assert str(tmp_path) not in raised.value.told


def test_a_disk_that_is_full_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path / "audit")
    log.note("reload-keys", "keys.toml")
    before = (tmp_path / "audit").read_bytes()
    write = os.write

    def short(descriptor: int, content: Any) -> int:
        if len(content) < 30:
            raise OSError(28, "No space left on device")
        return write(descriptor, bytes(content)[:20])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", short)
        with pytest.raises(Unavailable, match="No space left"):
            log.begin("load", "m", BY)
    assert (tmp_path / "audit").read_bytes() == before
    log.note("reload-keys", "keys.toml")
    assert len(lines(tmp_path / "audit")) == 2


def test_a_half_line_that_an_append_only_file_keeps_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``chattr +a`` nobody can truncate the file."""
    file = tmp_path / "audit"
    log, write = AuditLog(file), os.write
    log.note("reload-keys", "a")

    def short(descriptor: int, content: Any) -> int:
        if len(content) < 30:
            raise OSError(28, "No space left on device")
        return write(descriptor, bytes(content)[:20])

    def forbidden(descriptor: int, size: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", short)
        patched.setattr(os, "ftruncate", forbidden)
        with pytest.raises(Unavailable, match=r"^the action was refused: .*No space left"):
            log.begin("load", "m", BY)
    log.note("reload-keys", "b")
    first, torn, last = file.read_text("utf-8").splitlines()
    assert [json.loads(one)["on"] for one in (first, last)] == ["a", "b"]
    assert torn.startswith('{"time":')


def test_the_error_names_a_lock_held_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_LOCK_SECONDS", 0.0)
    log = AuditLog(tmp_path / "audit")
    with (tmp_path / "audit").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Unavailable) as refused:
            log.begin("stop", "m", BY, is_refused=False)
    assert refused.value.message.endswith("/audit cannot be written: another process holds its lock")
    assert refused.value.message.startswith("the audit log")


def test_an_end_that_cannot_be_audited_is_in_the_log_of_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "there").mkdir()
    log = AuditLog(tmp_path / "there/audit")
    with log.telling("unload", "ctr", BY):
        (tmp_path / "there/audit").unlink()
        (tmp_path / "there").rmdir()
    assert "could not write the end of an action to the audit log: No such file" in caplog.text


@pytest.mark.parametrize("kind", ["directory", "missing directory", "link", "pipe"])
def test_a_path_that_is_not_an_ordinary_file_is_refused_at_the_start(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "audit"
    if kind == "directory":
        file.mkdir()
    elif kind == "missing directory":
        file = tmp_path / "nowhere/audit"
    elif kind == "link":
        file.symlink_to(tmp_path / "other")
    else:
        os.mkfifo(file)
    with pytest.raises(ConfigError, match=r"^audit\.file: "):
        AuditLog(file)


def test_the_file_is_its_owners_and_may_be_moved_away(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    log.note("reload-keys", "a")
    (tmp_path / "audit").rename(tmp_path / "audit.1")
    log.note("reload-keys", "b")
    assert [one["on"] for name in ("audit.1", "audit") for one in lines(tmp_path / name)] == ["a", "b"]
    assert (tmp_path / "audit").stat().st_mode & 0o007 == 0


def test_where_something_else_is_by_now_nothing_is_done(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    (tmp_path / "audit").unlink()
    os.mkfifo(tmp_path / "audit")
    with pytest.raises(Unavailable, match="expected a file") as refused:
        log.begin("load", "m", BY)
    assert str(tmp_path) not in refused.value.told


def _write(file: str, number: int) -> None:
    log = AuditLog(Path(file))
    for _ in range(50):
        log.note("reload-keys", f"{number}" * 300)


def test_several_processes_append_whole_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(tmp_path / "audit"), number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    found = [one["on"] for one in lines(tmp_path / "audit")]
    assert sorted(found) == sorted([f"{number}" * 300 for number in range(3)] * 50)
