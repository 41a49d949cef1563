"""An mdn's third signature: the mean that it always gives, with a variance and an interval of any level."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.base.errors import InvalidRows
from headrace.base.tensors import Tensors
from headrace.runtimes.ctr import INTERVAL_SIGNATURE, CtrServable, servable_of
from tests.conformance.ctr_models import field_inputs, write


@pytest.fixture(scope="module")
def servable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CtrServable]:
    directory = tmp_path_factory.mktemp("model") / "1"
    directory.mkdir()
    write(directory, "mdn")
    loaded = servable_of(directory)
    yield loaded
    loaded.close()


def asked(rows: int, level: float) -> Tensors:
    return field_inputs(rows) | {"level": np.full(rows, level, np.float32)}


def test_what_it_asks_and_gives(servable: CtrServable) -> None:
    signature = servable.signatures[INTERVAL_SIGNATURE]
    assert str(signature.inputs[-1]) == "level FP32 [rows]"
    assert signature.inputs[-1].absent == 0.9
    assert signature.output_names == ("probability", "variance", "lower", "upper")
    assert tuple(servable.predict(asked(3, 0.8), INTERVAL_SIGNATURE)) == signature.output_names


def test_the_surer_the_wider_around_the_same_mean(servable: CtrServable) -> None:
    plain = servable.predict(field_inputs(30))["probability"]
    inner, outer = (servable.predict(asked(30, level), INTERVAL_SIGNATURE) for level in (0.5, 0.95))
    for one in (inner, outer):
        assert one["probability"].tolist() == plain.tolist()
        assert (one["lower"] <= one["upper"]).all()
        assert all(array.dtype == np.float32 for array in one.values())
    assert (outer["lower"] <= inner["lower"]).all()
    assert (outer["upper"] >= inner["upper"]).all()
    assert (outer["upper"] - outer["lower"] > inner["upper"] - inner["lower"]).any()
    assert (outer["variance"] > 0).all()


def test_a_row_is_answered_the_same_alone(servable: CtrServable) -> None:
    whole = servable.predict(asked(9, 0.8), INTERVAL_SIGNATURE)
    for row in range(9):
        one = {name: array[row : row + 1] for name, array in asked(9, 0.8).items()}
        for name, array in servable.predict(one, INTERVAL_SIGNATURE).items():
            assert array.tolist() == whole[name][row : row + 1].tolist()


def test_no_level_is_the_median_twice_and_wrong_ones_name_their_rows(servable: CtrServable) -> None:
    found = servable.predict(asked(4, 0.0), INTERVAL_SIGNATURE)
    np.testing.assert_allclose(found["lower"], found["upper"])
    wrong = asked(4, 0.5)
    wrong["level"][[1, 3]] = [1.0, np.nan]
    with pytest.raises(InvalidRows, match=r"level.*less than 1") as told:
        servable.predict(wrong, INTERVAL_SIGNATURE)
    assert set(told.value.rows) == {1, 3}
