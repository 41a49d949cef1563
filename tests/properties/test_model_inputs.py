"""Whatever the keys, each row gets what it would get alone, and what is recorded gives the same once more."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.archive.lookup.space_reader import Lookup
from headrace.archive.model_inputs.assembly import ModelInputs, Question
from headrace.base.tensors import STRING, Array
from headrace.config import InputSource
from tests.unit.archive.model_inputs.lookups import fill

NOW = 1_000_000
OOV = np.array([-1, -2], np.float32)
STORED = {f"k{number}": (number, NOW - 1000 * number) for number in range(6)}
SOURCES = {
    "plain": InputSource(space="images", key="url"),
    "young": InputSource(space="images", key="url", max_age_seconds=2.5),
    "other": InputSource(space="images", key="other", default=0.5),
    "both": InputSource(space="images", key="other", default=7, max_age_seconds=3.5),
}
INPUTS = ModelInputs(SOURCES, {"images": 4}, {})
rows = st.lists(
    st.tuples(*[st.sampled_from([*STORED, "", "new", "a\x1fb", "ü"]) for _ in range(2)]),
    min_size=1,
    max_size=9,
)


def look(question: Question) -> Lookup:
    """What is stored; where it is said what was served, that alone."""
    found = [STORED.get(key, (0, 0)) for key in question.keys]
    written = np.array([when for _, when in found], np.uint64)
    if question.written is not None:
        written = np.where(question.written == 0, 0, written).astype(np.uint64)
    vectors = np.repeat(np.array([[value] for value, _ in found], np.float32).reshape(-1, 1), 2, axis=1)
    vectors[written == 0] = OOV
    return Lookup(vectors, written, question.version, oov=OOV)


def request_of(keys: list[tuple[str, ...]]) -> dict[str, Array]:
    return {
        name: np.array([one[place].encode() for one in keys] + [None], STRING)[:-1]
        for place, name in enumerate(("url", "other"))
    }


@given(rows)
def test_each_row_gets_what_it_would_get_alone(keys: list[tuple[str, ...]]) -> None:
    together = fill(INPUTS, request_of(keys), look, NOW)
    for row, own in enumerate(keys):
        alone = fill(INPUTS, request_of([own]), look, NOW)
        for name in SOURCES:
            assert alone.inputs[name][0].tolist() == together.inputs[name][row].tolist()
            assert alone.looked_up[name].written[0] == together.looked_up[name].written[row]
    for name, source in SOURCES.items():
        place = 0 if source.key == "url" else 1
        counts = together.counts[name]
        assert counts.keys == sum(bool(own[place]) for own in keys)
        assert counts.found == np.count_nonzero(together.looked_up[name].written)
        assert counts.found + counts.too_old == sum(own[place] in STORED for own in keys)


@given(rows)
def test_what_was_recorded_gives_the_same_once_more(keys: list[tuple[str, ...]]) -> None:
    """At whatever time that is done: what was too old then is missing, and what was not is not."""
    request = request_of(keys)
    served = fill(INPUTS, request, look, NOW)
    recorded = {name: looked.written for name, looked in served.looked_up.items()}
    learnt = fill(INPUTS, request, look, NOW + 10**9, recorded)
    for name in SOURCES:
        assert learnt.inputs[name].tobytes() == served.inputs[name].tobytes()
        assert learnt.looked_up[name].written.tolist() == recorded[name].tolist()
