"""A worker without a supervisor is given time to end, and then ends."""

from __future__ import annotations

import socket

import pytest

from headrace.workers import worker
from headrace.workers.worker import Watch
from tests.waiting import until


def test_a_process_that_does_not_end_without_its_supervisor_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "GRACE_SECONDS", 0.0)
    codes = list[int]()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = Watch(theirs, codes.append)
        theirs.close()  # as of a channel that is closed here first
        assert codes == []
        ours.close()
        until(lambda: codes == [1])
        watch.stop()


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_process_that_ends_is_left_alone(is_gone: bool) -> None:
    codes = list[int]()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch = Watch(theirs, codes.append)
        ours.sendall(b"a message")
        if is_gone:
            ours.close()
        watch.stop()
    assert codes == []
