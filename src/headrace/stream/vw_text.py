"""VW's text format, line by line: a namespace is a field, and its features are the field's values.

The supported form is ``label [importance] [tag]|namespace feature feature … |namespace feature:value …``. A
feature without a value, or with the value 1, is a value of its namespace's categorical field; one with
another value is a dense field called ``namespace.feature``. Labels are 1, and 0 or -1, which mean the same.
Weights of namespaces, labels of other kinds (costs, actions, several classes) and examples of several lines
are not supported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from headrace.base.errors import StreamError

LABEL = "label"
WEIGHT = "weight"
NAMELESS = "features"
"""The field of features outside any namespace."""


@dataclass(slots=True)
class Example:
    """The example on one line.

    Attributes:
        label: 0 or 1.
        importance: Its weight.
        categories: The features without a value, or with the value 1, by namespace.
        numbers: The values of the other features, by ``namespace.feature``.
    """

    label: int
    importance: float = 1.0
    categories: dict[str, list[str]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


class _Numeric(NamedTuple):
    """The dense fields.

    Attributes:
        splits: By name, the possible pairs of namespace and feature: both may contain dots.
        features: The features of each of those namespaces.
    """

    splits: dict[str, list[tuple[str, str]]]
    features: dict[str, set[str]]

    @classmethod
    def of(cls, names: Iterable[str]) -> _Numeric:
        splits = {}
        features: dict[str, set[str]] = {}
        for name in names:
            words = name.split(".")
            splits[name] = [(".".join(words[:at]), ".".join(words[at:])) for at in range(1, len(words))]
            for space, feature in splits[name]:
                features.setdefault(space, set()).add(feature)
        return cls(splits, features)


def parse_line(line: str, row: int) -> Example:
    """Parse one line.

    Args:
        line: The line.
        row: Its number among the examples, for errors.

    Raises:
        StreamError: The line is malformed or not supported.
    """
    head, *sections = line.split("|")
    if not sections:
        raise StreamError(
            f"expected 'label |namespace feature …', got {_shown(line)}: there is no '|'", row=row
        )
    example = _head(head, row)
    for section in sections:
        _section(section, example, row)
    return example


def read_batches(
    groups: Iterable[Iterable[str]], dense: Iterable[str] | None, spaces: Iterable[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Read examples as columns: ``label``, ``weight``, texts per namespace, a number per dense field.

    Args:
        groups: The lines, in groups that each become a batch; empty ones are skipped. The first group
            determines the columns.
        dense: The dense fields; None to find them in the first group.
        spaces: Known namespaces, whether or not they occur in the first group.

    Yields:
        Batches with the same columns.

    Raises:
        StreamError: A line is malformed or not supported, or has a number without a column.
    """
    numbers = itertools.count()
    read = ([parse_line(line, next(numbers)) for line in map(str.strip, group) if line] for group in groups)
    sample = next(read, [])
    numeric = _Numeric.of(dense if dense is not None else {name for one in sample for name in one.numbers})
    known = list(spaces)
    seen = dict.fromkeys(name for one in sample for name in one.categories if name not in known)
    # A namespace of numbers alone is not categorical, even if one of its numbers is 1.
    known += [name for name in seen if any(_categories(one, name, numeric) for one in sample)]
    for name in (LABEL, WEIGHT):
        if name in known:
            raise StreamError(
                f"the column of {name}s has the name of this namespace, too; rename the namespace, or leave "
                "it out with a schema (--schema FILE)",
                row=next((row for row, one in enumerate(sample) if name in one.categories), 0),
                field=name,
            )
    row = 0
    for batch in itertools.chain([sample], read):
        if batch:
            yield _columns(batch, known, numeric, row)
        row += len(batch)


def _columns(examples: list[Example], spaces: list[str], numeric: _Numeric, first_row: int) -> pa.RecordBatch:
    for row, one in enumerate(examples, first_row):
        for name in one.numbers:
            if name not in numeric.splits:
                raise StreamError(
                    "this feature has a value other than 1 and no dense field; name it in the schema with "
                    'role = "dense" (--schema FILE)',
                    row=row,
                    field=name,
                )
    columns: dict[str, pa.Array] = {
        LABEL: pa.array([one.label for one in examples], pa.int8()),
        WEIGHT: pa.array([one.importance for one in examples], pa.float64()),
    }
    for name in spaces:
        values = [_categories(one, name, numeric) or None for one in examples]
        columns[name] = pa.array(values, pa.list_(pa.string()))
    for name, splits in sorted(numeric.splits.items()):
        columns[name] = pa.array([_number(one, name, splits) for one in examples], pa.float64())
    return pa.record_batch(columns)


def _categories(example: Example, space: str, numeric: _Numeric) -> list[str]:
    values = example.categories.get(space, [])
    numbers = numeric.features.get(space)
    return [value for value in values if value not in numbers] if numbers else values


def _number(example: Example, name: str, splits: list[tuple[str, str]]) -> float:
    found = example.numbers.get(name)
    if found is not None:
        return found
    # A number written as 1 is among the categories; an absent one is 0, as in VW.
    return float(any(feature in example.categories.get(space, ()) for space, feature in splits))


def _head(head: str, row: int) -> Example:
    words = head.split()
    if (
        words
        and (head[-1:] != " " or words[-1].startswith("'"))
        and not (len(words) == 1 and _is_number(words[0]))
    ):
        words.pop()  # The tag: it touches the bar, or starts with a quote.
    if not words:
        raise StreamError(
            "expected a label, 0 or -1 or 1, before the first '|'; there is none", row=row, field=LABEL
        )
    if words[0] not in ("0", "-1", "1", "+1", "0.0", "-1.0", "1.0"):
        raise StreamError(f"expected 0 or -1 or 1, got {_shown(words[0])}", row=row, field=LABEL)
    importance = 1.0
    if len(words) > 1:
        importance = _value(words[1], WEIGHT, row)
        if importance < 0.0:
            raise StreamError(f"expected an importance of 0 or more, got {words[1]}", row=row, field=WEIGHT)
    if len(words) > 2:
        raise StreamError(
            f"expected 'label [importance] [tag]|', got {_shown(head)}; base predictions are not supported",
            row=row,
        )
    return Example(int(float(words[0]) > 0.0), importance)


def _section(section: str, example: Example, row: int) -> None:
    words = section.split()
    named = bool(words) and not section[0].isspace()
    name, _, weight = words[0].partition(":") if named else (NAMELESS, "", "")
    if weight and _value(weight, name, row) != 1.0:
        raise StreamError(f"weights of namespaces are not supported, got {words[0]}", row=row, field=name)
    categories = example.categories.setdefault(name, [])
    for word in words[1:] if named else words:
        feature, colon, value = word.rpartition(":")
        if not colon:
            categories.append(word)
        elif value == "1" or _value(value, f"{name}.{feature}", row) == 1.0:
            categories.append(feature)
        else:
            example.numbers[f"{name}.{feature}"] = float(value)


def _value(text: str, name: str, row: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise StreamError(f"expected a finite number, got {_shown(text)}", row=row, field=name)
    return number


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
