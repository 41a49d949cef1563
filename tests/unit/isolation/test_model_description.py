"""The description of a model that its process returns."""

from __future__ import annotations

import pytest

from headrace.isolation.model_description import describe, described
from headrace.model.servable import has_files
from tests.models import Doubling


class OfAnEndpoint(Doubling):
    """A model whose directory is temporary."""

    has_files = False
    takes_packed = True


@pytest.mark.parametrize("model", [Doubling(), OfAnEndpoint()])
def test_a_description_says_what_the_model_says(model: Doubling) -> None:
    found, signatures = described(*describe(model))
    assert (found.platform, found.has_files) == ("test", has_files(model))
    assert found.takes_packed == getattr(model, "takes_packed", False)
    assert signatures == model.signatures
