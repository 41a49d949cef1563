"""Source, Manager and loader threads together, on a real event loop and real directories."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from headrace.base.clock import LoopClock
from headrace.base.errors import LoadError
from headrace.config import ModelConfig, ServerConfig
from headrace.lifecycle.loader_threads import LoaderThreads
from headrace.lifecycle.manager import Manager
from headrace.lifecycle.source import DirectorySource
from headrace.lifecycle.version_states import State
from headrace.versions.manifest import check_manifest, publish
from headrace.versions.pins_and_holds import pin
from tests.unit.lifecycle.stage import Loaded, NotingLoader, Stage, wanted

POLL_SECONDS = 0.01
DEADLINE_SECONDS = 120.0


class ReadingLoader(NotingLoader):
    """Loads a version only if its file is whole."""

    def load(self, model: str, version: int, path: Path, config: ModelConfig) -> Loaded:
        check_manifest(path)
        if not (path / "model.txt").read_text().endswith("end"):
            raise LoadError(f"{path / 'model.txt'} ends too early")
        return super().load(model, version, path, config)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something has come true."""
    clock = LoopClock()
    deadline = clock.now() + DEADLINE_SECONDS
    while not condition():
        assert clock.now() < deadline, f"never: {what}"
        await asyncio.sleep(POLL_SECONDS)


def write(directory: Path) -> None:
    (directory / "model.txt").write_text("whole to the end")


def test_the_life_of_versions_from_publishing_to_the_last_request(tmp_path: Path) -> None:
    asyncio.run(life_of_versions(tmp_path / "models" / "m"))


async def life_of_versions(model: Path) -> None:
    publish(write, model)
    clock = LoopClock()
    clock.bind(asyncio.get_running_loop())
    loader = ReadingLoader()
    threads = LoaderThreads(clock, lambda: True)
    manager: Manager[Loaded] = Manager(loader, clock, threads)
    source = DirectorySource(
        model.parent, manager.want, clock, threads, ServerConfig(poll_seconds=POLL_SECONDS)
    )
    source.start()

    def state(version: int) -> State | None:
        known = {status.version: status.state for status in manager.status("m")}
        return known.get(version)

    await until(manager.ready, "the first version is ready")
    assert manager.get("m").version == 1

    # Half-written by hand: fails, leaves version 1 serving, and loads once it is whole.
    (model / ".2").mkdir()
    (model / ".2" / "model.txt").write_text("whole to")
    (model / ".2").rename(model / "2")
    await until(lambda: state(2) is State.FAILED, "the half-written version fails")
    assert manager.status("m")[0].error == "m/2/model.txt ends too early"
    assert manager.get("m").version == 1
    assert manager.ready()
    write(model / "2")
    await until(lambda: manager.get("m").version == 2, "the repaired version serves")

    # Published, but damaged on the way.
    publish(write, model.parent / ".staging", 3)
    (model.parent / ".staging" / "3" / "model.txt").write_text("wholE to the end")
    (model.parent / ".staging" / "3").rename(model / "3")
    await until(lambda: state(3) is State.FAILED, "the damaged version fails")
    assert "corrupt: model.txt does not have the checksum" in manager.status("m")[0].error

    # Going back, while a request still holds the version that is left.
    held = manager.get("m")
    held.acquire()
    pin(model, 1)
    await until(lambda: manager.get("m").version == 1, "the pinned version serves")
    assert state(2) is State.DRAINING
    held.release()
    await until(lambda: state(2) is None, "the old version is gone")
    assert held.closed

    source.stop()
    closed = asyncio.Event()
    manager.close(closed.set)
    await asyncio.wait_for(closed.wait(), DEADLINE_SECONDS)
    assert loader.open == set()


def test_not_ready_while_more_is_to_follow() -> None:
    """Models whose inputs come from an archive follow when it is open."""
    stage = Stage()
    stage.manager.want({"a": wanted(1)}, is_all=False)
    stage.run()
    assert stage.ready("a") == {1}
    assert not stage.manager.ready()
    stage.want(a=wanted(1), b=wanted(1))
    assert not stage.manager.ready()
    stage.run()
    assert stage.manager.ready()
