"""What a stream costs is linear in the bytes that arrive, and bounded, whatever shape they have.

Calls of functions and Arrow's allocations are counted; tests marked `timing` measure the processor's time.
"""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pytest

from headrace.base.errors import StreamError
from headrace.stream.arrow_ipc_parser import FREE_EXPANSION_BYTES, MOST_EXPANSION
from headrace.stream.block_reader import Reader, ReadSettings
from tests.properties.calls import MOST_GROWTH, calls
from tests.streams import schema_of

SCHEMA = schema_of(label={"role": "label"}, site={"text": True, "buckets": 1000}).encode()
SIZES = tuple(2**power for power in (17, 18, 19, 20))
NANOSECONDS = 2000
"""What a byte may take: a message has some 200, and costs a tenth of a millisecond."""

MEMORY = 32
"""How many bytes a byte may take that is not compressed; lists in Python have 8 for each."""

ALLOCATED = 25
"""How many bytes Arrow may allocate for a byte in all; twice what it does for deep lists."""

Make = Callable[[int], bytes]


def batch(**columns: object) -> pa.RecordBatch:
    return pa.record_batch({"label": pa.array([1], pa.int8()), "site": ["a"], **columns})


def stream(batches: Sequence[pa.RecordBatch], schema: bytes = SCHEMA, **options: object) -> bytes:
    out, columns = io.BytesIO(), batches[0].schema.with_metadata({b"headrace": schema})
    with pa.ipc.new_stream(out, columns, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for one in batches:
            writer.write_batch(pa.record_batch(one.columns, columns))
    return out.getvalue()


def nested(depth: int) -> pa.DataType:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def coded(size: int, *, growing: bool) -> bytes:
    """Many small batches of a dictionary as large as all of them."""
    batches = size // 1000
    values = pa.array([f"a value of some length {number}" for number in range(size // 60)])
    made = []
    for number in range(batches):
        known = values.slice(0, len(values) - batches + number) if growing else values
        site = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), known)
        made.append(pa.record_batch({"label": pa.array([1], pa.int8()), "site": site}))
    return stream(made, emit_dictionary_deltas=growing)


def fields(size: int) -> bytes:
    said = [{"name": "label", "role": "label"}, {"name": "site", "role": "categorical", "text": True}]
    said += [{"name": f"f{number}", "role": "ignored"} for number in range(size // 40)]
    return stream([batch()], json.dumps({"fields": said}).encode())


SHAPES: dict[str, Make] = {
    "columns": lambda size: stream([batch(**{f"c{number}": [1] for number in range(size // 200)})]),
    "columns of nothing": lambda size: stream(
        [batch(**{f"c{number}": pa.nulls(1) for number in range(size // 150)})]
    ),
    "empty batches": lambda size: stream([batch().slice(0, 0)] * (size // 200)),
    "batches of one row": lambda size: stream([batch()] * (size // 300)),
    "streams": lambda size: stream([batch()]) * (size // 1000),
    "a long text": lambda size: stream([batch(site=["x" * size])]),
    "a list of lists": lambda size: stream([batch(d=pa.array([[[]] * (size // 4)]))]),
    "deep lists": lambda size: stream([batch(d=pa.nulls(1, nested(60)))] * (size // 3000)),
    "fields of the schema": fields,
    "a large dictionary": lambda size: coded(size, growing=False),
    "a dictionary that grows": lambda size: coded(size, growing=True),
    "compressed texts": lambda size: stream([batch(site=["x" * size * 20])] * 20, compression="zstd"),
}

EXPANDING = ("compressed texts", "a dictionary that grows")
"""What may become more than it was, and has a limit for that."""


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Counts what Arrow takes from here on."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(before)


def read(data: bytes) -> None:
    """Take what can be had of it; what is refused must say why, and cost no more for it."""
    try:
        with Reader(io.BytesIO(data), ReadSettings(batch_rows=100)) as reader:
            for _block in reader:
                pass
    except StreamError as error:
        if "bytes received" not in str(error):
            raise


def seconds(data: bytes) -> float:
    """The least of three: what else the machine does only adds to it."""
    taken = []
    for _ in range(3):
        began = time.process_time()
        read(data)
        taken.append(time.process_time() - began)
    return min(taken)


@pytest.mark.exact
@pytest.mark.parametrize("shape", SHAPES)
def test_calls_and_allocations_are_linear_in_the_bytes_that_arrive(shape: str, pool: pa.MemoryPool) -> None:
    read(SHAPES[shape](SIZES[0]))  # Compiles.
    called, allocated = [], []
    for data in (SHAPES[shape](size) for size in (SIZES[0], SIZES[-1])):
        before = pool.total_bytes_allocated()
        called.append(calls(partial(read, data)) / len(data))
        allocated.append((pool.total_bytes_allocated() - before) / len(data))
        if shape in EXPANDING:
            assert allocated[-1] <= 2 * (MOST_EXPANSION + FREE_EXPANSION_BYTES / len(data))
        else:
            assert allocated[-1] <= ALLOCATED
    assert called[1] < MOST_GROWTH * called[0]
    assert shape in EXPANDING or allocated[1] < MOST_GROWTH * allocated[0]


@pytest.mark.timing
@pytest.mark.parametrize("shape", SHAPES)
def test_time_is_linear_in_the_bytes_that_arrive(shape: str) -> None:
    read(SHAPES[shape](SIZES[0]))  # Compiles.
    streams = [SHAPES[shape](size) for size in SIZES]
    # A floor: below it, the clock and the first message of a stream are what is measured.
    taken = [max(seconds(data), 0.005) for data in streams]
    allowed = FREE_EXPANSION_BYTES / 2**30 if shape in EXPANDING else 0.0
    assert taken[-1] <= NANOSECONDS * 1e-9 * len(streams[-1]) + allowed + 0.02
    grown = len(streams[-1]) / len(streams[0])
    assert taken[-1] <= max(2.5 * grown * taken[0], allowed + 0.02)


@pytest.mark.exact
@pytest.mark.parametrize("shape", SHAPES)
def test_memory_is_bounded_by_the_bytes_that_arrive(shape: str, pool: pa.MemoryPool) -> None:
    data = SHAPES[shape](SIZES[-1])
    before = pool.max_memory()
    tracemalloc.start()
    try:
        read(data)
        taken = tracemalloc.get_traced_memory()[1] + pool.max_memory() - before
    finally:
        tracemalloc.stop()
    factor, free = (MOST_EXPANSION, FREE_EXPANSION_BYTES) if shape in EXPANDING else (MEMORY, 2**22)
    assert taken <= factor * len(data) + free
