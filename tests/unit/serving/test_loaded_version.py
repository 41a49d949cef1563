"""What keeps a loaded version: its requests, and Leases of it; how many instances it has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.base import cpus
from headrace.batching.request import Request, Settlement
from headrace.config import ModelConfig, ServerConfig
from headrace.lifecycle.leases import Lease
from headrace.serving.engine import Engine
from headrace.serving.loaded_version import LoadedVersion
from tests.model_directories import SLOW, affine, write
from tests.models import Doubling
from tests.virtual_clock import VirtualClock


def loaded(clock: VirtualClock) -> LoadedVersion:
    return LoadedVersion("m", 1, Doubling(), ModelConfig(), clock)


def submit(version: LoadedVersion, settlements: list[Settlement]) -> None:
    (signature,) = version.signatures.values()
    version.predictor.submit(Request(*signature.check({"x": [[1, 2]]}), settlements.append))


def test_a_lease_keeps_a_version_until_it_is_released() -> None:
    clock, idle = VirtualClock(), list[str]()
    version = loaded(clock)
    with Lease(version) as held:
        assert held is version
        assert version.outstanding == 1
        version.on_idle = lambda: idle.append("idle")
        clock.run_ready()
        assert idle == []
    assert idle == []  # what is submitted in this very turn is still answered
    clock.run_ready()
    assert idle == ["idle"]
    assert version.outstanding == 0


def test_a_request_submitted_when_a_lease_ends_is_answered_before_the_version_is_idle() -> None:
    clock, events = VirtualClock(), list[object]()
    version = loaded(clock)
    lease = Lease(version)
    version.on_idle = lambda: events.append("idle")
    lease.release()
    submit(version, events)
    while len(events) < 2:
        clock.run_ready()
    assert events[1] == "idle"
    version.batcher.close()


def test_a_request_that_ends_during_a_lease_does_not_make_the_version_idle() -> None:
    clock, events = VirtualClock(), list[object]()
    version = loaded(clock)
    lease = Lease(version)
    version.on_idle = lambda: events.append("idle")
    for count in (1, 2):
        submit(version, events)
        while len(events) < count:
            clock.run_ready()
    assert "idle" not in events
    lease.release()
    clock.run_ready()
    assert events[2:] == ["idle"]
    version.batcher.close()


def test_a_version_whose_last_user_left_just_before_it_drains_is_idle() -> None:
    """A thread that calls leaves at any moment, also between the look at who is inside and the waiting."""
    clock, idle = VirtualClock(), list[str]()
    version = loaded(clock)
    assert version.callers is not None
    version.on_idle = lambda: idle.append("idle")
    clock.run_ready()
    assert idle == ["idle"]


def test_a_lease_is_released_once() -> None:
    version = loaded(VirtualClock())
    first, second = Lease(version), Lease(version)
    first.release()
    first.release()
    assert version.outstanding == 1
    second.release()
    assert version.outstanding == 0


@pytest.mark.parametrize(
    ("content", "settings", "most"),
    [
        (SLOW, "", 1),  # calls of Python code seldom speed each other up
        (SLOW, "[batching]\ninstances = 3\n", 3),
        (affine(1.0, 0.0), "", 4),
        (affine(1.0, 0.0), "[batching]\ninstances = 1\n", 1),
    ],
)
def test_a_model_in_python_has_one_instance_by_default_and_others_one_per_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, settings: str, most: int
) -> None:
    monkeypatch.setattr(cpus, "available", lambda: 4)
    write(tmp_path, "m", 1, content, settings)

    async def scenario() -> None:
        async with Engine(tmp_path, config=ServerConfig(allow_code=True)) as engine:
            assert engine.loaded("m").batcher.instances.most == most

    asyncio.run(asyncio.wait_for(scenario(), 120))
