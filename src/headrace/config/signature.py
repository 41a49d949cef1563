"""The section ``[signature]`` of a model: the meaning of its outputs."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

import msgspec

from headrace.config.checks import one_of, whole, wrong

_MOST_CLASSES = 2**20


class SignatureConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Meaning of a model's outputs: for TensorFlow Serving's Classify and Regress, and for ``top``.

    Attributes:
        kind: The method that the model supports besides Predict.
        scores: The output with the scores, or the regression's value; empty for the only possible one.
        classes: The output with the classes' names; empty for none.
        labels: The classes' names in the order of the scores, if no output contains them.
        labels_file: File in each version's directory with the same names, one per line; empty for none.
        top: Number of highest-scored classes that every answer names, in the outputs ``label`` and ``score``;
            0 for no such outputs.
    """

    kind: Literal["predict", "classify", "regress"] = "predict"
    scores: str = ""
    classes: str = ""
    labels: tuple[str, ...] = ()
    labels_file: str = ""
    top: int = 0

    def __post_init__(self) -> None:
        """Check each setting, and that they fit together."""
        one_of("signature.kind", self.kind, ("predict", "classify", "regress"))
        whole("signature.top", self.top, most=_MOST_CLASSES)
        if self.classes and (self.labels or self.labels_file):
            raise wrong("signature.labels", "either classes (an output) or labels (names)", "both")
        if self.labels and self.labels_file:
            raise wrong("signature.labels_file", "either labels (names) or their file", "both")
        if self.top and not (self.labels or self.labels_file):
            raise wrong("signature.labels", f"the classes' names with top = {self.top}, or labels_file", [])
        path = PurePosixPath(self.labels_file)
        if path.is_absolute() or ".." in path.parts:
            raise wrong("signature.labels_file", "a file in the version's directory", self.labels_file)
