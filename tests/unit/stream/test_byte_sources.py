"""Bytes of a descriptor, which other processes may read, too."""

from __future__ import annotations

import os

import pytest

from headrace.stream.byte_sources import DescriptorSource


@pytest.mark.parametrize("timeout", [None, 600.0])
def test_bytes_that_another_process_has_read_are_not_the_end(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    read, calls = os.readv, list[int]()

    def lose_the_first(descriptor: int, rooms: list[memoryview]) -> int:
        calls.append(descriptor)
        if len(calls) == 1:
            raise BlockingIOError
        return read(descriptor, rooms)

    monkeypatch.setattr(os, "readv", lose_the_first)
    reading, writing = os.pipe()
    source = DescriptorSource(reading)
    try:
        os.write(writing, b"rows")
        room = memoryview(bytearray(10))
        assert source.read(room, timeout) == 4
        assert bytes(room[:4]) == b"rows"
        assert source.read(room, 0.0) is None
    finally:
        source.close()
        os.close(reading)
        os.close(writing)
