"""A keeper lives on, whatever it is asked; processes that die: tests/faults/test_keeper_killed.py."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from headrace.sealed_memory.copies import _BUSY_SECONDS
from headrace.sealed_memory.file_copying import Content, Numbers
from headrace.sealed_memory.keeper import _WORKERS, KeeperProcess
from headrace.sealed_memory.keeper_client import SILENT_SECONDS, KeeperClient


def test_questions_that_make_no_sense_are_refused_and_others_are_answered(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table").write_bytes(bytes(4096))
    with closing(KeeperProcess()) as keeper, (tmp_path / "table").open("rb") as file:
        client = KeeperClient(keeper.descriptor)
        for number in range(2 * _WORKERS):  # each would have ended a thread
            with pytest.raises(OSError, match="TypeError") as refused:
                client.copy(file.fileno(), Content(4096, finite=Numbers(f"nonsense{number}", 0)))
            assert refused.value.errno == errno.EIO
        copy = client.copy(file.fileno(), Content(4096, hashlib.sha256(bytes(4096)).hexdigest()))
        assert copy is not None
        assert copy.size_bytes == 4096
    assert "processing a file failed" in capfd.readouterr().err


def test_a_keeper_that_waits_for_the_kernel_is_not_taken_for_one_that_hangs() -> None:
    assert 2 * _BUSY_SECONDS <= SILENT_SECONDS


def test_a_process_without_descriptors_does_not_say_that_the_keeper_has_ended(tmp_path: Path) -> None:
    program = """
        import os, resource, socket, sys
        from headrace.sealed_memory.keeper_client import KeeperClient
        asking, keeping = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client, file = KeeperClient(asking.fileno()), os.open(sys.argv[1], os.O_RDONLY)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(os.dup(file))
        except OSError:
            os.close(held.pop())
            os.close(held.pop())  # two are enough for the connection, and not for asking
        assert client.checksum(file, 4096) is None
    """
    (tmp_path / "table").write_bytes(bytes(4096))
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "table")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no descriptor is left to ask it with (Too many open files)" in done.stderr
