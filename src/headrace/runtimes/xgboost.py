"""XGBoost models, ``model.ubj`` or ``model.json``, as ``Booster.save_model`` writes them.

The library's C API is called, without the Python package, whose calls take twice as long for a row. There is
one output ``prediction``, that of ``Booster.inplace_predict`` up to the best iteration, if training stopped
early: FP32 ``[rows]``, or ``[rows, classes]`` with several classes or targets. Needs the extra ``xgboost``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import LoadError, ModelError
from headrace.base.tensors import Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, EXPLAIN_SIGNATURE, TensorSpec
from headrace.runtimes.native_library import open_library
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.tree_inputs import OPTIONS, TreeInputs, explanation_of, signature_of, signatures_with
from headrace.runtimes.xgboost_file import check

_LIBRARY = open_library("xgboost", "libxgboost")
_LIBRARY.XGBGetLastError.restype = ctypes.c_char_p

# Types of prediction of XGBoost's c_api.h.
_RAW_SCORES, _CONTRIBUTIONS = 1, 2

_Handle = ctypes.c_void_p


def load(file: Path, options: RuntimeOptions) -> XgboostServable:
    """Load a model.

    Args:
        file: A model file of XGBoost, as UBJSON or JSON.
        options: The operator's settings; docs/runtimes.md lists the options.

    Raises:
        LoadError: The file is damaged, or XGBoost refuses it.
    """
    options.check_known(OPTIONS)
    try:
        data = file.read_bytes()
        columns, iterations = check(data)
    except OSError as error:
        raise LoadError(f"cannot read {file.name}: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"cannot read {file.name} as a model of XGBoost: {error}") from error
    inputs = TreeInputs(columns, options)
    handle = _Handle()
    _expect_success(_LIBRARY.XGBoosterCreate(None, ctypes.c_uint64(0), ctypes.byref(handle)))
    try:
        _expect_success(_LIBRARY.XGBoosterSetParam(handle, b"nthread", b"%d" % options.threads))
        _expect_success(_LIBRARY.XGBoosterLoadModelFromBuffer(handle, data, ctypes.c_uint64(len(data))))
        return XgboostServable(handle, inputs, iterations, options)
    except BaseException:
        _LIBRARY.XGBoosterFree(handle)
        raise


class XgboostServable:
    """A booster of XGBoost."""

    platform = "xgboost"
    is_native = True

    def __init__(self, handle: _Handle, inputs: TreeInputs, iterations: int, options: RuntimeOptions) -> None:
        """Take over a booster.

        Args:
            handle: The booster; freed by ``close``.
            inputs: Its inputs.
            iterations: Number of iterations to predict with; 0 for all.
            options: The operator's settings.

        Raises:
            LoadError: XGBoost cannot compute with the booster.
        """
        self._handle = handle
        self._inputs = inputs
        self._typestr = inputs.dtype.str.encode()
        self._config = (
            b'{"type": 0, "training": false, "iteration_begin": 0, "iteration_end": %d, "missing": NaN, '
            b'"strict_shape": false, "cache_id": 0}' % iterations
        )
        try:
            shape = self._run(np.full((2, inputs.width), np.nan, inputs.dtype))[1]
        except ModelError as error:
            raise LoadError(error.message) from error
        self._shape = shape[1:]
        output = TensorSpec("prediction", np.dtype(np.float32), self._shape)
        signature = signature_of(inputs, output, options)
        self._iterations = iterations
        self._explanation = explanation_of(inputs, self._contributions, self._raw_scores)
        self.signatures = signatures_with(signature, self._explanation)

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Predict or explain a whole batch.

        Args:
            inputs: Every input, checked.
            signature: The name of the signature.

        Raises:
            ModelError: XGBoost failed.
        """
        if self._explanation is not None and signature == EXPLAIN_SIGNATURE:
            return self._explanation.outputs(self._contributions, inputs)
        matrix = self._inputs.join(inputs)
        values, _ = self._run(matrix)
        prediction = np.empty((len(matrix), *self._shape), np.float32)
        ctypes.memmove(prediction.ctypes.data, values, prediction.nbytes)
        return {"prediction": prediction}

    def _run(self, matrix: Array) -> tuple[ctypes.c_void_p, tuple[int, ...]]:
        """Return the address of the prediction, valid until this thread's next call, and its shape."""
        return self._called(_LIBRARY.XGBoosterPredictFromDense, self._described(matrix), self._config, None)

    def _called(
        self, function: Callable[..., int], *arguments: object
    ) -> tuple[ctypes.c_void_p, tuple[int, ...]]:
        shape, dimensions, values = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64(), ctypes.c_void_p()
        failed = function(
            self._handle, *arguments, ctypes.byref(shape), ctypes.byref(dimensions), ctypes.byref(values)
        )
        if failed:
            raise ModelError(f"XGBoost failed: {_last_error()}")
        return values, tuple(shape[: dimensions.value])

    def _raw_scores(self, inputs: Tensors) -> Array:
        """Return the raw scores: FP64 ``[rows, scores]``."""
        return self._of_data(inputs, _RAW_SCORES)

    def _contributions(self, inputs: Tensors) -> Array:
        """Return what each column adds to the raw scores: FP64 ``[rows, scores, columns + 1]``."""
        return self._of_data(inputs, _CONTRIBUTIONS)

    def _of_data(self, inputs: Tensors, kind: int) -> Array:
        config = (
            b'{"type": %d, "training": false, "strict_shape": true, "iteration_begin": 0, '
            b'"iteration_end": %d}' % (kind, self._iterations)
        )
        data, matrix = _Handle(), self._inputs.join(inputs)
        if _LIBRARY.XGDMatrixCreateFromDense(
            self._described(matrix), b'{"missing": NaN}', ctypes.byref(data)
        ):
            raise ModelError(f"XGBoost failed: {_last_error()}")
        try:
            values, shape = self._called(_LIBRARY.XGBoosterPredictFromDMatrix, data, config)
            found = np.empty(shape, np.float32)
            ctypes.memmove(found.ctypes.data, values, found.nbytes)
            return found.astype(np.float64)
        finally:
            _LIBRARY.XGDMatrixFree(data)

    def _described(self, matrix: Array) -> bytes:
        return b'{"data": [%d, true], "shape": [%d, %d], "typestr": "%s", "version": 3}' % (
            matrix.ctypes.data,
            *matrix.shape,
            self._typestr,
        )

    def close(self) -> None:
        """Free the booster."""
        _LIBRARY.XGBoosterFree(self._handle)


def _expect_success(failed: int) -> None:
    if failed:
        raise LoadError(f"XGBoost refuses the model: {_last_error()}")


def _last_error() -> str:
    """Return the first line of the last error in this thread, without the time and XGBoost's source file."""
    said: Any = _LIBRARY.XGBGetLastError()
    first = str(said.decode(errors="replace")).partition("\n")[0]
    return first.rpartition(": ")[2] if first.startswith("[") else first
