"""A remote encoder that is down or hangs: servers and fillers start, go on, and end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.operations.open_archive import open_archive_file
from tests.faults.archive_processes import Encoder, encoding
from tests.services import Start
from tests.waiting import until
from tools.services.ports import free_ports
from tools.services.redis_server import Redis

FILMS = [f"film {number}" for number in range(500)]
TEXTS = [f"text {number}" for number in range(100)]
COMMANDS = {
    "server": ("serve", "--http-port", "0", "--grpc-port", "0"),
    "filler": ("fill", "--threads", "2", "--batch", "16"),
}


def settings(folder: Path, well: str, ill: str, seconds: float = 2.0) -> None:
    embedder = f'kind = "model"\nmodel = "encoder"\ntimeout_seconds = {seconds}\n'
    (folder / "archive.toml").write_text(
        f"""
        fill = true
        cache = {{ absent_seconds = 0.05, poll_seconds = 0.1 }}
        [spaces.films]
        dimension = 3
        embedder = "well"
        [spaces.texts]
        dimension = 3
        embedder = "ill"
        [embedders.well]
        {embedder}url = "{well}"
        [embedders.ill]
        {embedder}url = "{ill}"
        """
    )


@contextmanager
def archiving(folder: Path, kind: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that fills, and what it has said so far."""
    verb, *options = COMMANDS[kind]
    command = [sys.executable, "-m", "headrace", "archive", verb, "--archive", str(folder / "archive.toml")]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    reader = Thread(target=lambda: said.extend(iter(process.stderr.readline, "")))  # type: ignore[union-attr]
    reader.start()
    try:
        yield process, said
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()  # type: ignore[union-attr]
        print(*said, sep="")


def all_found(archive: Archive, space: str, keys: Sequence[str]) -> bool:
    return bool(archive.lookup(space, keys).found.all())


def warnings_of(folder: Path) -> list[str]:
    command = [sys.executable, "-m", "headrace", "archive", "status", "--json"]
    done = subprocess.run(
        [*command, "--archive", str(folder / "archive.toml")], capture_output=True, check=True
    )
    return list(json.loads(done.stdout)["warnings"])


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["server", "filler"])
def test_one_that_never_answers_keeps_nothing_from_starting_nor_others_from_filling(
    kind: str, encoder: Encoder, tmp_path: Path
) -> None:
    """It takes connections and says nothing; later, one that answers is there."""
    place = tmp_path / "coming"
    settings(tmp_path, encoder.url, encoder.url)
    with open_archive_file(tmp_path / "archive.toml"):  # so that the spaces have their versions
        pass
    (port,) = free_ports(1)  # which nobody who connects to anybody is given when it is silent no more
    with socket.create_server(("127.0.0.1", port)) as silent:
        ill = f"http://127.0.0.1:{port}"
        settings(tmp_path, encoder.url, ill, 5.0)
        with (
            open_archive_file(tmp_path / "archive.toml") as archive,
            archiving(tmp_path, kind) as (
                process,
                said,
            ),
        ):
            archive.want("texts", TEXTS)
            archive.want("films", FILMS[:1])
            until(lambda: all_found(archive, "films", FILMS[:1]))
            archive.want("films", FILMS)
            until(lambda: all_found(archive, "films", FILMS))
            assert not archive.lookup("texts", TEXTS).found.any()  # the other one has not answered yet
            told = f"the embedder 'ill' at {ill} (of texts) cannot be opened: "
            until(lambda: any(told in line for line in said))
            until(lambda: any(told in line for line in warnings_of(tmp_path)))
            assert process.poll() is None
            silent.close()
            with encoding(place, 3, "--http-port", str(port)) as coming:
                until(lambda: all_found(archive, "texts", TEXTS))
                until(lambda: archive.queue.depth().messages == 0)
                assert {key: coming.embedded()[key] for key in TEXTS} == dict.fromkeys(TEXTS, 1)
                until(lambda: any("answers again after" in line for line in said))
            assert not list(archive.dead_letters.all())


@pytest.mark.parametrize("kind", ["server", "filler"])
def test_a_store_that_is_down_at_the_start_is_waited_for(
    kind: str, encoder: Encoder, own_redis: Start[Redis], tmp_path: Path
) -> None:
    store = own_redis()
    settings(tmp_path, encoder.url, encoder.url)
    file = tmp_path / "archive.toml"
    file.write_text(f'store = {{ kind = "redis", address = "{store.address}" }}\n{file.read_text()}')
    with open_archive_file(file) as archive:
        archive.want("films", FILMS)
        store.stop()
        with archiving(tmp_path, kind) as (process, said):
            until(lambda: any("cannot be filled yet" in line for line in said))
            assert process.poll() is None
            store.start()
            until(lambda: all_found(archive, "films", FILMS))
            until(lambda: archive.queue.depth().messages == 0)
            assert not list(archive.dead_letters.all())


@pytest.mark.rest
def test_a_server_ends_while_an_encoder_hangs_and_its_keys_are_delivered_again(
    encoder: Encoder, tmp_path: Path
) -> None:
    settings(tmp_path, encoder.url, encoder.url, 600.0)
    with open_archive_file(tmp_path / "archive.toml") as archive:
        with archiving(tmp_path, "server") as (process, said):
            archive.want("films", FILMS[:1])
            until(lambda: all_found(archive, "films", FILMS[:1]))
            encoder.hold()
            try:
                archive.want("texts", ["hangs"])
                until(lambda: encoder.embedded()["hangs"])
                process.send_signal(signal.SIGTERM)
                assert process.wait() == 0
            finally:
                encoder.go()
            until(lambda: any("is still working on a batch; it is abandoned" in line for line in said))
        with archiving(tmp_path, "filler"):
            until(lambda: all_found(archive, "texts", ["hangs"]))


def test_a_model_that_is_not_there_is_an_error_at_the_start(encoder: Encoder, tmp_path: Path) -> None:
    settings(tmp_path, encoder.url, encoder.url)
    file = tmp_path / "archive.toml"
    file.write_text(file.read_text() + "version = 7\n")
    for kind in COMMANDS:
        with archiving(tmp_path, kind) as (process, said):
            assert process.wait() == 2
        assert "the server answered 404" in "".join(said)


def test_a_backfill_ends_where_its_own_encoder_is_down_and_not_where_anothers_is(
    encoder: Encoder, tmp_path: Path
) -> None:
    (port,) = free_ports(1)  # which nobody who connects to anybody is given
    nobody = f"http://127.0.0.1:{port}"
    settings(tmp_path, encoder.url, nobody)
    command = [sys.executable, "-m", "headrace", "archive", "backfill", "--archive"]
    command += [str(tmp_path / "archive.toml"), "--from-version", "1"]
    with open_archive_file(tmp_path / "archive.toml"):
        pass
    done = {
        space: subprocess.run([*command, space], capture_output=True, text=True, check=False)
        for space in ("films", "texts")
    }
    assert done["films"].returncode == 1
    assert "cannot be filled from itself" in done["films"].stderr
    assert done["texts"].returncode == 1
    assert f"the embedder 'ill' at {nobody} (of texts) cannot be opened" in done["texts"].stderr
