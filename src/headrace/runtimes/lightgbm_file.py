"""Read and check a text file of LightGBM: the library ends the process on a damaged one.

LightGBM reads past the end of short arrays and follows any index while it predicts. The format is that of
``GBDT::SaveModelToString`` and ``Tree::ToString`` in LightGBM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.base.tensors import Array
from headrace.runtimes.tree_inputs import Columns

_BEGIN = b"tree\n"
_TREES_END = b"end of trees"
_CATEGORIES = b"pandas_categorical:"
_CATEGORICAL, _INDEX = 1, np.int64

_Section = Mapping[str, bytes]


def check(text: bytes) -> Columns:
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
