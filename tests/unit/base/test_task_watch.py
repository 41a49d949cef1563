"""What a TaskWatch says of tasks that end, and of those that may."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from headrace.base.task_watch import TaskWatch


async def nothing() -> None:
    """End."""


async def failure() -> None:
    raise OSError("no descriptor is left")


async def watched(
    work: Coroutine[object, object, None], *, needed: bool, stopping: bool = False
) -> TaskWatch:
    supervisor = TaskWatch()
    task = asyncio.ensure_future(work)
    (supervisor.needs if needed else supervisor.allows)("the work", task)
    if stopping:
        supervisor.stop()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    return supervisor


@pytest.mark.parametrize("work", [nothing, failure])
def test_the_end_of_a_required_task_is_reported(work: object, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = asyncio.run(watched(work(), needed=True))  # type: ignore[operator]
    assert supervisor.failed.result() == "the work"
    why = ": no descriptor is left" if work is failure else ""
    assert caplog.messages == [f"the work ended unexpectedly; no more requests can be accepted{why}"]


@pytest.mark.parametrize("work", [nothing, failure])
def test_at_the_end_everything_may_end(work: object, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = asyncio.run(watched(work(), needed=True, stopping=True))  # type: ignore[operator]
    assert not supervisor.failed.done()
    assert caplog.messages == []


def test_the_failure_of_an_optional_task_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = asyncio.run(watched(failure(), needed=False))
    assert not supervisor.failed.done()
    assert caplog.messages == ["the work failed; the server goes on"]


def test_the_end_of_an_optional_task_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(watched(nothing(), needed=False))
    assert caplog.messages == []
