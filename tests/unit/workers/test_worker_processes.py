"""The sockets that workers get from a running server."""

from __future__ import annotations

import pytest

from headrace.base.errors import Unavailable
from headrace.frontends.transport.listening_sockets import Listeners
from headrace.workers.worker_processes import places_at


def test_workers_do_not_share_one_set_with_a_running_server() -> None:
    """They accept as soon as they start; without steering they would get requests for models that load."""
    with pytest.raises(Unavailable, match=r"--workers 1, or stop the running one"):
        places_at(Listeners([[]], may_join=False, free=()), 2)


def test_workers_take_the_free_sets_of_a_running_server() -> None:
    listeners = Listeners([[], [], []], may_join=True, free=(0, 2), leading=(1,))
    assert [place.set for place in places_at(listeners, 2)] == [0, 2]
