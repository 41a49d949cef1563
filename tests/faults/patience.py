"""Calls that must end by themselves: a hang fails the test, a slow machine does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from headrace.base.errors import Unavailable

SLACK_SECONDS = 100.0
"""Slack for a busy machine, beyond a call's own timeout."""


def ended(call: Callable[[], object], timeout_seconds: float) -> Unavailable | None:
    """Make a call on a thread of its own, and return the ``Unavailable`` it raised, or None if it worked.

    Args:
        call: What to call.
        timeout_seconds: The timeout that the call has to keep.

    Raises:
        AssertionError: The call did not end, long after its timeout.
    """
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again below
            future.set_exception(error)

    thread = threading.Thread(target=run, name="patience", daemon=True)
    thread.start()
    thread.join(timeout_seconds + SLACK_SECONDS)
    assert not thread.is_alive(), f"the call with a timeout of {timeout_seconds} s does not end"
    error = future.exception()
    if error is not None and not isinstance(error, Unavailable):
        raise error
    return error
