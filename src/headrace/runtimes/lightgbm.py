"""LightGBM models from text files, ``model.txt``, as ``Booster.save_model`` writes them.

The library's C API is called, without the Python package, whose calls take several times as long for a row.
There is one output ``prediction``, that of ``Booster.predict``: FP64 ``[rows]``, or ``[rows, classes]`` with
several classes. Needs the extra ``lightgbm``.

A file is checked first (``_check``): LightGBM reads past the end of short arrays and follows any index while
it predicts. The format is that of ``GBDT::SaveModelToString`` and ``Tree::ToString`` in LightGBM.
"""

from __future__ import annotations

import ctypes
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.base.errors import LoadError, ModelError
from headrace.base.tensors import Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, EXPLAIN_SIGNATURE, TensorSpec
from headrace.runtimes.options import RuntimeOptions
from headrace.runtimes.tree_models import (
    OPTIONS,
    Columns,
    TreeInputs,
    explanation_of,
    open_library,
    signature_of,
    signatures_with,
)

_LIBRARY = open_library("lightgbm", "lib_lightgbm")
_LIBRARY.LGBM_GetLastError.restype = ctypes.c_char_p

# Constants of LightGBM's c_api.h.
_FLOAT32, _FLOAT64 = 0, 1
_NORMAL, _RAW_SCORES, _CONTRIBUTIONS, _ALL_ITERATIONS, _ROW_MAJOR = 0, 1, 3, -1, 1

_Handle = ctypes.c_void_p

_BEGIN = b"tree\n"
_TREES_END = b"end of trees"
_CATEGORIES = b"pandas_categorical:"
_CATEGORICAL, _INDEX = 1, np.int64

_Section = Mapping[str, bytes]


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
        columns = _check(text)
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


# ---- The check of a file ----


def _check(text: bytes) -> Columns:
    """Check a model's text, and return its columns.

    Args:
        text: The file's contents.

    Raises:
        ValueError: LightGBM could not read the text, or could not compute with it.
    """
    if text.startswith(b"tree\r"):
        raise ValueError("its line ends were converted; copy it in binary mode")
    if not text.startswith(_BEGIN):
        raise ValueError("it does not begin with 'tree', as a text file of LightGBM does")
    start = text.find(b"\nTree=0\n") + 1
    if not start:
        raise ValueError("it has no trees")
    header = _section(text[len(_BEGIN) : start], "the header")
    count = _whole(header, "max_feature_idx") + 1
    names = _value(header, "feature_names").decode().split(" ")
    if len(names) != count:
        raise ValueError(f"feature_names has {len(names)} names, expected {count}")
    sizes = _numbers(header, "tree_sizes", None, _INDEX)
    _check_groups(header, len(sizes))
    after = _check_trees(text, start, sizes, count)
    if b"parameters:" in text[after:] and b"end of parameters" not in text[after:]:
        raise ValueError("its end is missing; copy the file again, or save the model again")
    unnamed = all(name == f"Column_{index}" for index, name in enumerate(names))
    return Columns(count, None if unnamed else tuple(names), _categories(text[after:], header))


def _check_groups(header: _Section, trees: int) -> None:
    """Check the numbers of classes, which bound the memory that predictions are written to."""
    classes, per_iteration = _whole(header, "num_class"), _whole(header, "num_tree_per_iteration")
    objective = header.get("objective", b"").decode().split(" ")
    named = [word.partition(":")[2] for word in objective if word.startswith("num_class:")]
    if classes < 1 or per_iteration != classes or any(word != str(classes) for word in named):
        raise ValueError("num_class, num_tree_per_iteration and objective contradict each other")
    if trees % per_iteration:
        raise ValueError(f"tree_sizes does not have a multiple of {per_iteration} sizes")


def _check_trees(text: bytes, start: int, sizes: Array, count: int) -> int:
    """Check each tree, and return the position after the last one."""
    for index, size in enumerate(sizes.tolist()):
        begin = b"Tree=%d\n" % index
        tree = text[start : start + size] if size > 0 else b""
        if not tree.startswith(begin):
            raise ValueError(f"tree {index} is not where tree_sizes says; were its line ends converted?")
        _check_tree(_section(tree[len(begin) :], f"tree {index}"), count)
        start += size
    if not text.startswith(_TREES_END, start):
        raise ValueError("its end is missing; copy the file again, or save the model again")
    return start


def _check_tree(tree: _Section, count: int) -> None:
    leaves = _whole(tree, "num_leaves")
    if leaves < 1:
        raise ValueError(f"num_leaves is {leaves}")
    for key in ("leaf_value", "leaf_weight", "leaf_count"):
        if key == "leaf_value" or (key in tree and leaves > 1):
            _numbers(tree, key, leaves, np.float64)
    if tree.get("is_linear", b"0") != b"0":
        _check_linear(tree, leaves, count)
    if leaves == 1:
        return
    nodes = leaves - 1
    for key in ("split_gain", "internal_value", "internal_weight", "internal_count"):
        if key in tree:
            _numbers(tree, key, nodes, np.float64)
    features = _numbers(tree, "split_feature", nodes, _INDEX)
    thresholds = _numbers(tree, "threshold", nodes, np.float64)
    decisions = _numbers(tree, "decision_type", nodes, _INDEX)
    children = [_numbers(tree, key, nodes, _INDEX) for key in ("left_child", "right_child")]
    # Each child is a later node or a leaf, and has one parent: following them always ends at a leaf.
    both = np.concatenate(children)
    expected = np.concatenate([np.arange(-leaves, 0), np.arange(1, nodes)])
    if not np.array_equal(np.sort(both), expected) or any(
        ((child >= 0) & (child <= np.arange(nodes))).any() for child in children
    ):
        raise ValueError("left_child and right_child are not those of a tree")
    _expect("split_feature", features, count)
    _check_categories(tree, thresholds[(decisions & _CATEGORICAL) > 0])


def _check_categories(tree: _Section, indices: Array) -> None:
    sets = _whole(tree, "num_cat")
    _expect("threshold", indices, sets)
    if sets:
        bounds = _numbers(tree, "cat_boundaries", sets + 1, _INDEX)
        if bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise ValueError("cat_boundaries do not increase from 0")
        _numbers(tree, "cat_threshold", int(bounds[-1]), _INDEX)


def _check_linear(tree: _Section, leaves: int, count: int) -> None:
    _numbers(tree, "leaf_const", leaves, np.float64)
    sizes = _numbers(tree, "num_features", leaves, _INDEX)
    if (sizes < 0).any():
        raise ValueError("num_features has a negative number")
    _expect("leaf_features", _numbers(tree, "leaf_features", int(sizes.sum()), _INDEX), count)
    _numbers(tree, "leaf_coeff", int(sizes.sum()), np.float64)


def _categories(end: bytes, header: _Section) -> dict[int, list[object]]:
    """Return the values of the data frame's columns of categories.

    The text has the lists of values, in the order of the columns, but not the columns.
    """
    _, found, line = end.rpartition(_CATEGORIES)
    try:
        lists: Any = json.loads(line) if found else None
    except ValueError:
        raise ValueError("its last line, pandas_categorical, is damaged") from None
    if not lists:
        return {}
    _, listed, parameter = end.partition(b"[categorical_feature: ")
    columns = [int(one) for one in parameter.partition(b"]")[0].split(b",") if one] if listed else []
    if not columns:
        infos = _value(header, "feature_infos").split(b" ")
        columns = [index for index, info in enumerate(infos) if info[:1] not in (b"[", b"n")]
    if len(columns) != len(lists):
        raise ValueError(
            f"it has {len(columns)} columns of categories, {len(lists)} of them with values of a data frame, "
            "and does not say which; give all of them the dtype `category` in the data frame"
        )
    return dict(zip(columns, lists, strict=True))


def _section(text: bytes, what: str) -> dict[str, bytes]:
    """Return the lines ``key=value`` before the first empty line."""
    lines, end, _ = text.partition(b"\n\n")
    if not end:
        raise ValueError(f"{what} is cut; copy the file again, or save the model again")
    pairs = (line.partition(b"=") for line in lines.split(b"\n"))
    return {key.decode(): value for key, _, value in pairs}


def _value(section: _Section, key: str) -> bytes:
    if key not in section:
        raise ValueError(f"{key} is missing")
    return section[key]


def _whole(section: _Section, key: str) -> int:
    return int(_numbers(section, key, 1, _INDEX)[0])


def _numbers(section: _Section, key: str, count: int | None, dtype: Any) -> Array:
    values: Sequence[bytes] = _value(section, key).split()
    if count is not None and len(values) != count:
        raise ValueError(f"{key} has {len(values)} values, expected {count}")
    try:
        return np.array(values, dtype)
    except (ValueError, OverflowError):
        raise ValueError(f"{key} has a value that is not a number") from None


def _expect(key: str, values: Array, most: int) -> None:
    if ((values < 0) | (values >= most)).any():
        raise ValueError(f"{key} has an index that is not below {most}")
