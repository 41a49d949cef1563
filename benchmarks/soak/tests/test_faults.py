"""What is left out of a plan is told."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.soak.faults import Faults
from benchmarks.soak.plan import PLAIN, Step
from benchmarks.soak.servers import SoakServer


def test_a_fault_that_waited_too_long_for_a_recovery_is_left_out(tmp_path: Path) -> None:
    never_started = SoakServer(PLAIN, tmp_path)
    faults = Faults({PLAIN: never_started}, {}, began=time.monotonic() - 1000.0)
    asyncio.run(faults.do(Step(800.0, "kill server", PLAIN, 1.0, 0, until_seconds=900.0)))
    assert faults.skipped == ["kill server in plain at 800 s: recoveries before it took too long"]
    assert faults.episodes == []
