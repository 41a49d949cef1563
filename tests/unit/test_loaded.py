"""What keeps a loaded version: its requests, and Leases of it."""

from __future__ import annotations

from headrace.batching.request import Request, Settlement
from headrace.config import ModelConfig
from headrace.lifecycle.handle import Lease
from headrace.loaded import LoadedVersion
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


def test_what_is_submitted_in_the_turn_in_which_a_lease_ends_is_answered_first() -> None:
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
