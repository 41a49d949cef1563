"""Read and check a model file of XGBoost, ``model.ubj`` or ``model.json``.

XGBoost reads past the end of a cut UBJSON file, and follows any index while it predicts; both end the
process. The format is that of ``Learner::SaveModel`` in XGBoost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from headrace.base.tensors import Array
from headrace.runtimes import ubjson
from headrace.runtimes.tree_inputs import Columns

_UBJSON = b"{L"
_MOST_CATEGORIES = 1 << 24  # XGBoost's own limit, a float32 being exact up to there

_KEEPS_TEXTS = [3, 4]
_NO_CHILD = -1

_Object = Mapping[str, Any]


def check(data: bytes) -> tuple[Columns, int]:
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
