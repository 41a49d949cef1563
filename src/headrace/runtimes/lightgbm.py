"""LightGBM models from text files, ``model.txt``, as ``Booster.save_model`` writes them.

The library's C API is called, without the Python package, whose calls take several times as long for a row.
There is one output ``prediction``, that of ``Booster.predict``: FP64 ``[rows]``, or ``[rows, classes]`` with
several classes. Needs the extra ``lightgbm``.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.base.errors import LoadError, ModelError
from headrace.base.tensors import Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, EXPLAIN_SIGNATURE, TensorSpec
from headrace.runtimes.lightgbm_file import check
from headrace.runtimes.native_library import open_library
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.tree_inputs import OPTIONS, TreeInputs, explanation_of, signature_of, signatures_with

_LIBRARY = open_library("lightgbm", "lib_lightgbm")
_LIBRARY.LGBM_GetLastError.restype = ctypes.c_char_p

# Constants of LightGBM's c_api.h.
_FLOAT32, _FLOAT64 = 0, 1
_NORMAL, _RAW_SCORES, _CONTRIBUTIONS, _ALL_ITERATIONS, _ROW_MAJOR = 0, 1, 3, -1, 1

_Handle = ctypes.c_void_p


def load(file: Path, options: RuntimeOptions) -> LightgbmServable:
    """Load a model.

    Args:
        file: A text file of LightGBM.
        options: The operator's settings; docs/runtimes.md lists the options.

    Raises:
        LoadError: The file is damaged, or LightGBM refuses it.
    """
    options.check_known(OPTIONS)
    try:
        text = file.read_bytes()
        columns = check(text)
    except OSError as error:
        raise LoadError(f"cannot read {file.name}: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"cannot read {file.name} as a text file of LightGBM: {error}") from error
    inputs = TreeInputs(columns, options)
    handle, iterations = _Handle(), ctypes.c_int()
    _expect_success(
        _LIBRARY.LGBM_BoosterLoadModelFromString(text, ctypes.byref(iterations), ctypes.byref(handle))
    )
    try:
        return LightgbmServable(handle, inputs, options)
    except BaseException:
        _LIBRARY.LGBM_BoosterFree(handle)
        raise


class _RowCall(NamedTuple):
    """A prepared call for one row.

    Attributes:
        handle: Its state in LightGBM.
        row: The row ``[1, columns]`` that it reads.
        prediction: The prediction that it writes.
        run: Computes the prediction; returns 0 for success.
    """

    handle: _Handle
    row: Array
    prediction: Array
    run: Callable[[], int]


class LightgbmServable:
    """A booster of LightGBM."""

    platform = "lightgbm"
    is_native = True

    def __init__(self, handle: _Handle, inputs: TreeInputs, options: RuntimeOptions) -> None:
        """Take over a booster.

        Args:
            handle: The booster; freed by ``close``.
            inputs: Its inputs.
            options: The operator's settings.

        Raises:
            LoadError: LightGBM cannot compute with the booster.
        """
        classes = ctypes.c_int()
        _expect_success(_LIBRARY.LGBM_BoosterGetNumClasses(handle, ctypes.byref(classes)))
        self._handle = handle
        self._inputs = inputs
        self._classes = classes.value
        self._shape = () if self._classes == 1 else (self._classes,)
        self._type = _FLOAT32 if inputs.dtype == np.float32 else _FLOAT64
        self._parameters = b"num_threads=%d" % options.threads
        self._counted = inputs.specs[0].name
        self._calls: deque[_RowCall] = deque()
        output = TensorSpec("prediction", np.dtype(np.float64), self._shape)
        signature = signature_of(inputs, output, options)
        self._explanation = explanation_of(inputs, self._contributions, self._raw_scores)
        self.signatures = signatures_with(signature, self._explanation)

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict or explain a whole batch.

        Args:
            inputs: Every input, checked.
            signature: The name of the signature.

        Raises:
            ModelError: LightGBM failed.
        """
        if self._explanation is not None and signature == EXPLAIN_SIGNATURE:
            return self._explanation.outputs(self._contributions, inputs)
        if len(inputs[self._counted]) == 1:
            return {"prediction": self._predict_row(inputs)}
        matrix = self._inputs.join(inputs)
        prediction = np.empty((len(matrix), *self._shape))
        self._compute(matrix, _NORMAL, prediction)
        return {"prediction": prediction}

    def _raw_scores(self, inputs: Tensors) -> Array:
        """Return the raw scores: FP64 ``[rows, scores]``."""
        matrix = self._inputs.join(inputs)
        scores = np.empty((len(matrix), self._classes))
        self._compute(matrix, _RAW_SCORES, scores)
        return scores

    def _contributions(self, inputs: Tensors) -> Array:
        """Return what each column adds to the raw scores: FP64 ``[rows, scores, columns + 1]``."""
        matrix = self._inputs.join(inputs)
        contributions = np.empty((len(matrix), self._classes, self._inputs.width + 1))
        self._compute(matrix, _CONTRIBUTIONS, contributions)
        return contributions

    def _compute(self, matrix: Array, kind: int, output: Array) -> None:
        failed = _LIBRARY.LGBM_BoosterPredictForMat(
            self._handle,
            _address(matrix),
            self._type,
            len(matrix),
            self._inputs.width,
            _ROW_MAJOR,
            kind,
            0,
            _ALL_ITERATIONS,
            self._parameters,
            ctypes.byref(ctypes.c_int64()),
            _address(output),
        )
        if failed:
            raise ModelError(f"LightGBM failed: {_last_error()}")

    def _predict_row(self, inputs: Tensors) -> Array:
        """Predict one row through a prepared call, which takes a tenth of the time of a call for rows."""
        try:
            call = self._calls.pop()  # one call uses it at a time
        except IndexError:
            call = self._prepared()
        _, row, buffer, run = call
        self._inputs.fill(row, inputs)
        failed = run()
        prediction = buffer.copy()
        self._calls.append(call)
        if failed:
            raise ModelError(f"LightGBM failed: {_last_error()}")
        return prediction

    def _prepared(self) -> _RowCall:
        handle = _Handle()
        failed = _LIBRARY.LGBM_BoosterPredictForMatSingleRowFastInit(
            self._handle,
            _NORMAL,
            0,
            _ALL_ITERATIONS,
            self._type,
            self._inputs.width,
            self._parameters,
            ctypes.byref(handle),
        )
        if failed:
            raise ModelError(f"LightGBM failed: {_last_error()}")
        row = np.zeros((1, self._inputs.width), self._inputs.dtype)
        prediction = np.zeros((1, *self._shape))
        run = partial(
            _LIBRARY.LGBM_BoosterPredictForMatSingleRowFast,
            handle,
            _address(row),
            ctypes.byref(ctypes.c_int64()),
            _address(prediction),
        )
        return _RowCall(handle, row, prediction, run)

    def close(self) -> None:
        """Free the booster."""
        for call in self._calls:
            _LIBRARY.LGBM_FastConfigFree(call.handle)
        self._calls.clear()
        _LIBRARY.LGBM_BoosterFree(self._handle)


def _address(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _expect_success(failed: int) -> None:
    if failed:
        raise LoadError(f"LightGBM refuses the model: {_last_error()}")


def _last_error() -> str:
    said: Any = _LIBRARY.LGBM_GetLastError()
    return str(said.decode(errors="replace"))
