"""What a model's process prints becomes lines of the log, within limits."""

from __future__ import annotations

import logging
import os

import pytest

from headrace.isolation.output_log import Output
from tests.virtual_clock import VirtualClock

LEFT_OUT = "50 lines of the model's output left out"


@pytest.fixture
def written(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "headrace")
    return caplog


def flood(pipe: int) -> None:
    """Write 150 lines, and the beginning of one."""
    os.write(pipe, b"".join(b"line %d\n" % number for number in range(150)) + b"unfinished")


def test_lines_left_out_are_counted_in_the_next_second(written: pytest.LogCaptureFixture) -> None:
    there, pipe = os.pipe()
    clock = VirtualClock()
    output = Output(there, logging.INFO, {}, clock.now)
    flood(pipe)
    assert output.read()
    assert written.messages == [f"line {number}" for number in range(100)]
    clock.advance(1)
    os.write(pipe, b" line\n")
    assert output.read()
    assert written.messages[100:] == [LEFT_OUT, "unfinished line"]
    os.close(pipe)
    assert not output.read()
    assert len(written.messages) == 102
    os.close(there)


@pytest.mark.parametrize("closes", [True, False], ids=["the stream ends", "a program keeps it open"])
def test_lines_left_out_are_counted_when_the_process_has_ended(
    closes: bool, written: pytest.LogCaptureFixture
) -> None:
    there, pipe = os.pipe()
    output = Output(there, logging.INFO, {}, VirtualClock().now)
    flood(pipe)
    assert output.read()
    if closes:
        os.close(pipe)
        assert not output.read()
    output.end()
    assert written.messages[100:] == ["51 lines of the model's output left out"]
    os.close(there)
    if not closes:
        os.close(pipe)
