"""When a server may take another one's place, as a truth table."""

from __future__ import annotations

import pytest

from headrace.base.errors import FailedPrecondition
from headrace.lifecycle.version_states import State, VersionStatus
from headrace.server.handover.readiness import lacking

READY, LOADING = VersionStatus(1, State.READY), VersionStatus(1, State.LOADING)
FAILED = VersionStatus(1, State.FAILED, error="no such file")
NEXT, NEXT_LOADS = VersionStatus(2, State.READY), VersionStatus(2, State.WARMING)
NEXT_FAILED = VersionStatus(2, State.FAILED, error="cut off")
UNWANTED = VersionStatus(1, State.UNLOADED, wanted=False)


@pytest.mark.parametrize(
    ("there", "here", "waits"),
    [
        ({}, {}, []),
        ({}, {"m": [FAILED]}, []),
        ({"m": (1,)}, {"m": [READY]}, []),
        ({"m": (1,)}, {"m": [LOADING]}, ["m/1"]),
        ({"m": (1,)}, {"m": [READY], "other": [LOADING]}, []),
        ({"m": (1, 2)}, {"m": [READY, NEXT_LOADS]}, ["m/2"]),
        ({"m": (1,)}, {"m": [NEXT, UNWANTED]}, []),
        ({"m": (1,)}, {"m": [NEXT]}, []),
        ({"m": (1,)}, {"m": [NEXT_LOADS]}, ["m/1"]),
        ({"m": (1,)}, {"m": [NEXT_LOADS, UNWANTED]}, ["m/1"]),
        ({"m": (1,), "n": (1,)}, {"m": [READY], "n": [LOADING]}, ["n/1"]),
    ],
)
def test_versions_ready_in_the_running_server_are_waited_for(
    there: dict[str, tuple[int, ...]], here: dict[str, list[VersionStatus]], waits: list[str]
) -> None:
    assert lacking(there, here) == waits


@pytest.mark.parametrize(
    ("here", "why"),
    [
        ({}, "m is served by the running server, but not by this one"),
        ({"m": [FAILED]}, "no such file"),
        ({"m": [NEXT, FAILED]}, "no such file"),
        ({"m": [NEXT_FAILED]}, "cut off"),
        ({"m": [UNWANTED]}, "the settings here do not select it"),
        ({"m": []}, "the settings here do not select it"),
    ],
)
def test_a_version_that_will_not_become_ready_is_an_error(
    here: dict[str, list[VersionStatus]], why: str
) -> None:
    with pytest.raises(FailedPrecondition, match=why):
        lacking({"m": (1,)}, here)
