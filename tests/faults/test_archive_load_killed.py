"""A load that is killed on the way: nobody sees a part of it, and the same command again ends it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from headrace.archive.opening import open_archive_file
from headrace.cli.main import main

ROWS = 200_000
SLOWLY = """
import sys
import time

from headrace.cli.main import main
from headrace.stores.lmdb import InLmdbStore

put_many = InLmdbStore.put_many


def put_slowly(*given):
    put_many(*given)
    time.sleep(0.1)


InLmdbStore.put_many = put_slowly
sys.exit(main(sys.argv[1:]))
"""
"""A load that takes so many seconds that it is on its way when it is killed, however late that is."""


def test_a_load_that_is_killed_is_run_again_and_its_default_moves_only_then(tmp_path: Path) -> None:
    toml, file = tmp_path / "archive.toml", tmp_path / "users.csv"
    toml.write_text("cache = { poll_seconds = 0.05, absent_seconds = 0.01 }\n[tables.users]\n")
    file.write_text("user_id,age\nu0,1\n")
    assert main(["archive", "load", "users", str(file), "--archive", str(toml)]) == 0
    rows = "".join(f"u{row},{row},{row / 2}\n" for row in range(ROWS))
    file.write_text("user_id,age,score\n" + rows)
    words = [sys.executable, "-m", "headrace", "archive", "load", "users", str(file), "--archive", str(toml)]
    words += ["--new-columns"]
    with open_archive_file(toml) as archive:

        def is_begun() -> bool:
            there = [version.number for version in archive.record("users").versions]
            return there == [1, 2] and bool(archive.lookup("users", ["u0"], version=2).found[0])

        with subprocess.Popen([sys.executable, "-c", SLOWLY, *words[3:]]) as process:
            end = time.monotonic() + 120
            while not is_begun():
                assert process.poll() is None
                assert time.monotonic() < end
            process.kill()
        last = f"u{ROWS - 1}"
        assert not archive.lookup("users", [last], version=2).found[0]  # it was on its way
        before = archive.lookup("users", ["u0"])
        assert (before.version, before.values()["age"].tolist()) == (1, [1])
        assert subprocess.run(words, check=False, timeout=200).returncode == 0
        end = time.monotonic() + 20
        while archive.lookup("users", ["u0"]).version != 2:
            assert time.monotonic() < end
        lookup = archive.lookup("users", [f"u{row}" for row in range(0, ROWS, 100)])
        assert lookup.found.all()
        assert lookup.values()["age"].tolist() == list(range(0, ROWS, 100))
