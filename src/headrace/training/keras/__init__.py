"""Keras models that learn from a stream, and their building blocks. Requires the extra ``tensorflow``."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read by TensorFlow on import

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow's modules warn of each other on import
    import keras  # noqa: F401 - imported here first, to suppress its warnings everywhere
    import tensorflow  # noqa: F401 - as above

from headrace.training.keras.lazy_adam import LazyAdam
from headrace.training.keras.model import Embedded, inputs_of

__all__ = ["Embedded", "LazyAdam", "inputs_of"]
