"""Kernels that are not kept: another process compiles them, and nothing in this one waits for it."""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from headrace.base.errors import LoadError
from headrace.base.tensors import Tensors
from headrace.model.servable import Signature, TensorSpec
from headrace.runtimes import kernel_compiling
from headrace.runtimes.ctr import make_ready, run_once, servable_like
from tests.conformance.ctr_models import write
from tests.waiting import seconds_left

SECONDS = 30.0
KERNEL = """
from headrace.jit.kernel_cache import cached

@cached(nogil=True)
def kernel(numbers):
    return numbers + {add}
"""
CHILD = """#!/bin/sh
echo >> '{begun}'
for _ in $(seq 5000); do test -e '{may_end}' && exit; sleep 0.02; done
"""
FLOAT = np.dtype(np.float32)


class OneKernel:
    """A servable that is one kernel, kept if this one of the directory was compiled before."""

    platform = "kernel"

    def __init__(self, directory: Path, add: int) -> None:
        directory.mkdir(exist_ok=True)
        file = directory / f"kernel_{add}.py"
        if not file.exists():
            file.write_text(KERNEL.format(add=add))
        found = importlib.util.spec_from_file_location(file.stem, file)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        self.kernel: Callable[[Any], Any] = module.kernel
        spec = TensorSpec("x", FLOAT, ())
        signature = Signature("serving_default", (spec,), (TensorSpec("y", FLOAT, ()),))
        self.signatures: Mapping[str, Signature] = {signature.name: signature}

    def predict(self, inputs: Tensors, signature: str = "") -> Tensors:
        return {"y": self.kernel(inputs["x"])}

    def close(self) -> None:
        """Nothing is held."""


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + seconds_left()
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def own(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged here: a driver's threads, left by a test before, log when they like."""
    return [record for record in caplog.records if record.name == kernel_compiling.__name__]


def test_a_load_that_compiles_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Compiled here, it would hold numba's lock, without which no kernel is made ready, for ten seconds."""
    caplog.set_level("INFO")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kernels"))
    kept, fresh, compiling = (OneKernel(tmp_path / str(add), add) for add in (1, 2, 3))
    run_once(kept)
    kept = OneKernel(tmp_path / "1", 1)
    begun, may_end, child = tmp_path / "begun", tmp_path / "may_end", tmp_path / "child"
    child.write_text(CHILD.format(begun=begun, may_end=may_end))
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    thread = threading.Thread(target=make_ready, args=(compiling, tmp_path / "ctr" / "3"))
    thread.start()
    try:
        wait_for(begun.exists, "the child was not started")
        run_once(fresh)
        make_ready(kept, tmp_path / "ctr" / "2")
        assert thread.is_alive()
    finally:
        may_end.touch()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert begun.read_text() == "\n"
    (said,) = own(caplog)
    assert {"model": "ctr", "version": "3"}.items() <= vars(said).items()
    assert compiling.predict({"x": np.zeros(1, FLOAT)})["y"] == [3.0]


def test_a_child_says_why_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer that keeps few versions may have removed the one whose kernels are to be compiled."""
    caplog.set_level("WARNING", "headrace")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kernels"))
    make_ready(OneKernel(tmp_path / "kernel", 4), tmp_path / "ctr" / "3")
    assert [record.getMessage() for record in own(caplog)] == [
        "the process that compiles kernels failed (1): model.ctr cannot be read: No such file or directory"
    ]


def test_a_child_whose_version_is_gone_takes_the_newest_of_its_model(tmp_path: Path) -> None:
    """Otherwise the server compiles itself, in the way of requests, and versions go faster than they load."""
    for number in (4, 5):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number), "lr")
    assert list(servable_like(tmp_path / "3").signatures) == ["serving_default", "rows", "explain"]
    (tmp_path / "5" / "model.ctr").write_bytes(b"damaged")
    with pytest.raises(LoadError):
        servable_like(tmp_path / "5")  # it is there: that is another matter
