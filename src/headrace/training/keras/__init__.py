"""Keras models that learn from a stream: what a user's file builds one of. Needs the extra ``tensorflow``."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow reads it when it is imported

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow's own modules, about each other
    import keras  # noqa: F401 - here first, so that it is quiet wherever it is used
    import tensorflow  # noqa: F401 - as above

from headrace.training.keras.lazy_adam import LazyAdam
from headrace.training.keras.model import Embedded, inputs_of

__all__ = ["Embedded", "LazyAdam", "inputs_of"]
