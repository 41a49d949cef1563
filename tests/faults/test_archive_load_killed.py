"""A load that is killed on the way: nobody sees a part of it, and the same command again ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.archive.operations.open_archive import open_archive_file
from headrace.cli.main import main
from tests.waiting import until

ROWS = 200_000
STOPS_ON_THE_WAY = """
import sys
import threading
from pathlib import Path

from headrace.cli.main import main
from headrace.storage.stores.lmdb import InLmdbStore

put_many = InLmdbStore.put_many


def put_once(store, partition, *given):
    put_many(store, partition, *given)
    if partition == "users_v2":
        Path(sys.argv[1]).touch()
        threading.Event().wait()


InLmdbStore.put_many = put_once
sys.exit(main(sys.argv[2:]))
"""
"""A load that stores its first rows, says so by a file, and stores no more."""


@pytest.mark.rest
def test_a_load_that_is_killed_is_run_again_and_its_default_moves_only_then(tmp_path: Path) -> None:
    toml, file, begun = tmp_path / "archive.toml", tmp_path / "users.csv", tmp_path / "begun"
    toml.write_text("cache = { poll_seconds = 0.05, absent_seconds = 0.01 }\n[tables.users]\n")
    file.write_text("user_id,age\nu0,1\n")
    assert main(["archive", "load", "users", str(file), "--archive", str(toml)]) == 0
    rows = "".join(f"u{row},{row},{row / 2}\n" for row in range(ROWS))
    file.write_text("user_id,age,score\n" + rows)
    words = [sys.executable, "-m", "headrace", "archive", "load", "users", str(file), "--archive", str(toml)]
    words += ["--new-columns"]
    with open_archive_file(toml) as archive:
        with subprocess.Popen([sys.executable, "-c", STOPS_ON_THE_WAY, str(begun), *words[3:]]) as process:
            try:
                until(lambda: begun.exists() or process.poll() is not None)
                assert process.poll() is None
            finally:
                process.kill()
        until(lambda: archive.record("users").last == 2)
        assert archive.lookup("users", ["u0"], version=2).found[0]
        last = f"u{ROWS - 1}"
        assert not archive.lookup("users", [last], version=2).found[0]  # it was on its way
        before = archive.lookup("users", ["u0"])
        assert (before.version, before.values()["age"].tolist()) == (1, [1])
        assert subprocess.run(words, check=False).returncode == 0
        until(lambda: archive.lookup("users", ["u0"]).version == 2)
        lookup = archive.lookup("users", [f"u{row}" for row in range(0, ROWS, 100)])
        assert lookup.found.all()
        assert lookup.values()["age"].tolist() == list(range(0, ROWS, 100))
