"""XGBoost models, ``model.ubj`` or ``model.json``, as ``Booster.save_model`` writes them.

The library's C API is called, without the Python package, whose calls take twice as long for a row. There is
one output ``prediction``, that of ``Booster.inplace_predict`` up to the best iteration, if training stopped
early: FP32 ``[rows]``, or ``[rows, classes]`` with several classes or targets. Needs the extra ``xgboost``.

A file is checked first (``_check``): XGBoost reads past the end of a cut UBJSON file, and follows any index
while it predicts; both end the process. The format is that of ``Learner::SaveModel`` in XGBoost.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import LoadError, ModelError
from headrace.base.tensors import Array, Tensors
from headrace.model.servable import DEFAULT_SIGNATURE, EXPLAIN_SIGNATURE, TensorSpec
from headrace.runtimes import ubjson
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

_LIBRARY = open_library("xgboost", "libxgboost")
_LIBRARY.XGBGetLastError.restype = ctypes.c_char_p

# Types of prediction of XGBoost's c_api.h.
_RAW_SCORES, _CONTRIBUTIONS = 1, 2

_Handle = ctypes.c_void_p

_UBJSON = b"{L"
_MOST_CATEGORIES = 1 << 24  # XGBoost's own limit, a float32 being exact up to there

_KEEPS_TEXTS = [3, 4]
_NO_CHILD = -1

_Object = Mapping[str, Any]


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
        columns, iterations = _check(data)
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


# ---- The check of a file ----


def _check(data: bytes) -> tuple[Columns, int]:
    """Check a model file.

    Args:
        data: The file's contents.

    Returns:
        The model's columns, and the number of iterations to predict with, up to the best one; 0 for all.

    Raises:
        ValueError: XGBoost could not read the file, or could not compute with it.
    """
    try:
        return _checked(ubjson.decode(data) if data.startswith(_UBJSON) else msgspec.json.decode(data))
    except (KeyError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"it has no trees of XGBoost, or they are damaged ({error!r})") from None


def _checked(model: Any) -> tuple[Columns, int]:
    learner: _Object = model["learner"]
    booster: _Object = learner["gradient_booster"]
    if booster["name"] == "gblinear":
        raise ValueError("it is a linear model (gblinear), which XGBoost cannot predict in place; use gbtree")
    trees: _Object = booster["gbtree"]["model"] if booster["name"] == "dart" else booster["model"]
    parameters: _Object = learner["learner_model_param"]
    count = int(parameters["num_feature"])
    groups = max(int(parameters["num_class"]), int(parameters.get("num_target", "1")), 1)
    _check_model(trees, count, groups)
    if booster["name"] == "dart" and len(booster["weight_drop"]) != len(trees["trees"]):
        raise ValueError("weight_drop does not have one weight per tree")
    names = tuple(map(str, learner.get("feature_names", ())))
    if names and len(names) != count:
        raise ValueError(f"feature_names has {len(names)} names, expected {count}")
    best = learner.get("attributes", {}).get("best_iteration")
    categories = _categories(trees["cats"], count, model["version"]) if "cats" in trees else {}
    columns = Columns(count, names or None, categories, targets=_targets(learner))
    return columns, 0 if best is None else int(best) + 1


def _targets(learner: _Object) -> int:
    """Return the number of targets of a regression; several targets of ``binary:…`` are labels: classes."""
    is_binary = str(learner.get("objective", {}).get("name", "")).startswith("binary:")
    return 1 if is_binary else int(learner["learner_model_param"].get("num_target", "1"))


def _check_model(model: _Object, count: int, groups: int) -> None:
    trees, of_groups = model["trees"], _integers(model["tree_info"])
    if len(trees) != len(of_groups) or len(trees) != int(model["gbtree_model_param"]["num_trees"]):
        raise ValueError("trees, tree_info and num_trees contradict each other")
    _expect("tree_info", of_groups, groups)
    for index, tree in enumerate(trees):
        if tree["id"] != index:
            raise ValueError(f"tree {index} has the id {tree['id']}")
        _check_tree(tree, count)
    ends = _integers(model.get("iteration_indptr", [0, len(trees)]))
    if ends[0] != 0 or ends[-1] != len(trees) or (np.diff(ends) < 0).any():
        raise ValueError("iteration_indptr does not increase from 0 to the number of trees")


def _check_tree(tree: _Object, count: int) -> None:
    nodes = int(tree["tree_param"]["num_nodes"])
    left, right = _integers(tree["left_children"]), _integers(tree["right_children"])
    features, parents = _integers(tree["split_indices"]), _integers(tree["parents"])
    if nodes < 1 or any(len(values) != nodes for values in (left, right, features, parents)):
        raise ValueError("a tree does not have one value per node")
    inner = left != _NO_CHILD
    # Each node has one parent and the first has none: following children always ends at a leaf.
    children = np.concatenate([left[inner], right[inner]])
    if len(np.unique(children)) != len(children) or not np.array_equal(inner, right != _NO_CHILD):
        raise ValueError("left_children and right_children are not those of a tree")
    _expect("left_children and right_children", children - 1, nodes - 1)
    if not np.array_equal(parents[children], np.tile(np.flatnonzero(inner), 2)):
        raise ValueError("parents are not those of left_children and right_children")
    if nodes > 1:
        _expect("parents", parents[1:], nodes)
    _expect("split_indices", features[inner], count)
    if "split_type" in tree:
        _check_categories(tree, inner, nodes)


def _check_categories(tree: _Object, inner: Array, nodes: int) -> None:
    types, of_nodes = _integers(tree["split_type"]), _integers(tree["categories_nodes"])
    begins, sizes = _integers(tree["categories_segments"]), _integers(tree["categories_sizes"])
    categories = _integers(tree["categories"])
    _expect("split_type", types, 2)
    _expect("categories", categories, _MOST_CATEGORIES)
    _expect("categories_nodes", of_nodes, nodes)
    if len(types) != nodes or not len(of_nodes) == len(begins) == len(sizes):
        raise ValueError("the categories of a tree do not fit its nodes")
    if (np.diff(of_nodes) <= 0).any() or not np.isin(np.flatnonzero(inner & (types == 1)), of_nodes).all():
        raise ValueError("categories_nodes are not the nodes that split by categories")
    if (begins < 0).any() or (sizes < 1).any() or (begins > len(categories) - sizes).any():
        raise ValueError("categories_segments and categories_sizes exceed the categories")


def _categories(cats: _Object, count: int, version: Sequence[int]) -> dict[int, list[object]]:
    """Return the values of the data frame's columns of categories."""
    columns = cats["enc"]
    bounds, order = _integers(cats["feature_segments"]), _integers(cats["sorted_idx"])
    values = [_values(column) for column in columns]
    sizes = [len(one) for one in values]
    if columns and (len(columns) != count or bounds.tolist() != [0, *np.cumsum(sizes).tolist()]):
        raise ValueError("the values of categories do not fit the columns")
    texts = [one for column in values for one in column if isinstance(one, str)]
    if list(version) < _KEEPS_TEXTS and not all(text.isascii() for text in texts):
        wrong = next(text for text in texts if not text.isascii())
        raise ValueError(
            f"XGBoost before 3.4 corrupts categories that are not ASCII ({wrong!r}); rename them "
            "before the model is fitted, or fit it with a newer release"
        )
    if len(order) != sum(sizes) or not _is_sorted_by(order, sizes):
        raise ValueError("sorted_idx does not fit the values of categories")
    return {index: one for index, one in enumerate(values) if one}


def _is_sorted_by(order: Array, sizes: Sequence[int]) -> bool:
    """Return whether each column's part of ``sorted_idx`` holds each of its positions once."""
    expected = [np.arange(size) for size in sizes]
    parts = np.split(order, np.cumsum(sizes)[:-1]) if sizes else []
    return all(np.array_equal(np.sort(part), one) for part, one in zip(parts, expected, strict=True))


def _values(column: _Object) -> list[object]:
    if "offsets" not in column:
        return list(_integers(column["values"]).tolist())
    ends, text = _integers(column["offsets"]), _integers(column["values"]).astype(np.uint8).tobytes()
    if len(ends) and (ends[0] != 0 or ends[-1] != len(text) or (np.diff(ends) < 0).any()):
        raise ValueError("the offsets of a column's categories do not fit its values")
    return [text[begin:end].decode(errors="replace") for begin, end in pairwise(ends)]


def _integers(values: object) -> Array:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError("a list of whole numbers holds something else")
    return array.astype(np.int64)


def _expect(name: str, values: Array, most: int) -> None:
    if ((values < 0) | (values >= most)).any():
        raise ValueError(f"{name} has a number that is not below {most}")
