"""Whatever calls cost, and however they speed each other up: measuring how many to run side by side pays."""

from __future__ import annotations

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.side_by_side import SideBySide


# Without shrinking: an example that fails is simulated for seconds, and is as easy to read as a smaller one.
@settings(max_examples=examples(100), phases=[Phase.generate])
@given(
    most=st.integers(2, 12),
    processors=st.integers(1, 12),
    power=st.floats(-0.3, 1.0),
    call_seconds=st.floats(0.01, 0.05),
    row_seconds=st.floats(0.0, 0.005),
    clients=st.integers(1, 24),
)
def test_as_much_is_answered_as_with_all_instances(
    most: int, processors: int, power: float, call_seconds: float, row_seconds: float, clients: int
) -> None:
    def speed(calls: int) -> float:
        return float(min(calls, processors) ** power)

    model = SideBySide(most, speed, call_seconds, row_seconds)
    model.run(15.0, clients)
    assert 1 <= model.limit.in_use <= most
    found = model.run(10.0, clients)
    everything = SideBySide(most, speed, call_seconds, row_seconds, measures=False).run(10.0, clients)
    assert found > 0.9 * everything
    assert 1 <= model.limit.allowed <= most
