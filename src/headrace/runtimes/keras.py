"""Keras 3 models, ``model.keras``, as ``model.save`` writes them; TensorFlow computes.

The model is exported as a SavedModel when it is loaded, and served by the TensorFlow runtime. Its inputs and
outputs are those of ``model.export``. Needs the extra ``keras``.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

from headrace.base.errors import LoadError, NotLoadable
from headrace.runtimes import tensorflow
from headrace.runtimes.options import RuntimeOptions

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # as in the TensorFlow runtime
    import keras


def load(file: Path, options: RuntimeOptions) -> tensorflow.TensorflowServable:
    """Load a model.

    Args:
        file: A file of Keras 3.
        options: The operator's settings. Lambda layers run code of the file, so they need ``allow_code``.

    Raises:
        LoadError: The file is damaged, holds code that may not run, or cannot be exported.
    """
    options.check_known({})
    if keras.backend.backend() != "tensorflow":
        raise NotLoadable(
            f"KERAS_BACKEND: expected tensorflow, got {keras.backend.backend()}; unset it for this server"
        )
    with tempfile.TemporaryDirectory(prefix="headrace-keras-") as folder:
        try:
            model = keras.models.load_model(file, compile=False, safe_mode=not options.allow_code)
            model.export(folder, verbose=False)
        except Exception as error:  # the boundary to Keras, whose exceptions share no base class
            raise _refused(file, error) from error
        finally:
            keras.backend.clear_session()
        servable = tensorflow.load(Path(folder, "saved_model.pb"), replace(options, options={}))
    servable.platform = "keras"
    return servable


def _refused(file: Path, error: Exception) -> LoadError:
    said = " ".join(str(error).split())
    if "safe_mode" in said or "unsafe" in said:
        return NotLoadable(
            f"{file.name} holds a Lambda layer or other code, which would run as the server. Start the "
            "server with --allow-code if you trust it, or replace the layer by one of keras.ops"
        )
    return LoadError(
        f"Keras cannot load {file.name}: {type(error).__name__}: {said}",
        told=f"Keras cannot load {file.name}; the server's log says more",
    )
