"""Look inputs up question by question, as serving and training do for many requests at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.archive.lookup.space_reader import Lookup
from headrace.archive.model_inputs.assembly import Filled, ModelInputs, Question, len_of
from headrace.base.tensors import Array, Tensors


def fill(
    inputs: ModelInputs,
    request: Tensors,
    look: Callable[[Question], Lookup],
    now: int | Array,
    recorded: Mapping[str, Array] | None = None,
) -> Filled:
    """Answer each question of a request, and make the inputs of the answers."""
    asked = inputs.questions(request, recorded)
    return inputs.filled(asked, [look(question) for question in asked], len_of(request), now, recorded)
