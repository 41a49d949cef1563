"""A slot as the model's process answers it."""

from __future__ import annotations

import os

from headrace.base.errors import ModelError
from headrace.isolation.child import Model, Slot
from headrace.isolation.messages import KNOWN, SIZE, Kind, Note, error_of, read_bytes
from headrace.isolation.shared_area import Area, new_file


def test_a_layout_that_was_not_announced_is_answered_with_an_error() -> None:
    """Without an answer the caller would wait until the timeout."""
    (requests, ask), (answers, answer) = os.pipe(), os.pipe()
    area = Area(new_file("test"), 2**20)
    slot = Slot(Model(), requests, answer, Area(os.dup(area.fd), 2**20))
    os.write(ask, Note(Kind.PREDICT | KNOWN, 99, 0, 0).packed())
    os.close(ask)
    slot.run()
    said = Note.of(os.read(answers, SIZE))
    os.close(answers)
    assert said.kind == Kind.FAILURE
    area.see(said.area_bytes)
    assert "KeyError" in error_of(read_bytes(area, said)).message
    area.close()


def test_an_error_that_does_not_fit_behind_the_inputs_is_answered() -> None:
    """Without an answer the caller would wait until the timeout, and the process would be killed."""
    most_bytes = 2**16
    area = Area(new_file("test"), most_bytes)
    area.grow(most_bytes)
    slot = Slot(Model(), -1, -1, Area(os.dup(area.fd), most_bytes))
    slot._area.see(most_bytes)
    slot._floor = most_bytes - 10
    said = slot._failure(ModelError("the model gave up"))
    assert error_of(read_bytes(area, said)).message == "the model gave up"
    area.close()
