"""Patches: on its base, a patch is the whole version, bit for bit; without its base it is an error."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import LoadError
from headrace.ctr.click_model import Table, Weights
from headrace.ctr.files.model_files import arrays_of, describe, read_description, read_model, write_model
from headrace.ctr.files.quantization import quantize
from headrace.ctr.model_settings import Kind
from headrace.training.releasing.patch import (
    Patch,
    base_of,
    changed_rows,
    choose_base,
    find_patch,
    open_base,
    write_patch,
)
from headrace.versions.manifest import publish
from tests.click_weights import FEATURES, settings_for, weights_for


@given(st.integers(0, 40), st.integers(0, 5), st.sampled_from(["f4", "i2", "i1", "u8"]), st.randoms())
def test_rows_that_differ_in_a_bit_are_found(rows: int, width: int, dtype: str, random) -> None:  # type: ignore[no-untyped-def]
    old = np.zeros((rows, width), dtype)
    new = old.copy()
    touched = sorted({random.randrange(rows) for _ in range(5)}) if rows and width else []
    for row in touched:
        new[row, random.randrange(width)] = 1
    assert changed_rows(new, old).tolist() == touched


def test_minus_zero_and_other_nans_are_differences_and_equal_nans_are_none() -> None:
    old = np.array([[0.0], [np.nan], [1.0]], np.float32)
    assert changed_rows(np.array([[-0.0], [np.nan], [1.0]], np.float32), old).tolist() == [0]


def test_rows_are_found_across_chunks() -> None:
    old = np.zeros((100_000, 16), np.float32)
    new = old.copy()
    touched = np.random.default_rng(0).choice(100_000, 500, replace=False)
    new[touched, touched % 16] = 1.0
    assert changed_rows(new, old).tolist() == sorted(touched)


@pytest.mark.parametrize(
    ("bases", "whole_every", "base"),
    [
        ({}, 10, None),
        ({1: None}, 10, 1),
        ({1: None, 2: None}, 10, 2),
        ({1: None, 2: 1, 3: 1}, 10, 1),
        ({2: 1, 3: 1}, 10, None),
        ({1: None, 2: 1, 3: 2}, 10, None),
        ({1: None, 2: 1}, 3, 1),
        ({1: None, 2: 1, 3: 1}, 3, None),
        ({1: None}, 1, None),
        ({1: None, 9: 1}, 10, 1),
        ({1: None, 10: 1}, 10, None),
    ],
)
def test_the_base_is_whole_and_not_too_long_ago(
    bases: dict[int, int | None], whole_every: int, base: int | None
) -> None:
    assert choose_base(bases, whole_every) == base


def touched(weights: Weights, rows: list[int], by: float = 0.05) -> Weights:
    tables = {name: Table.of(table.values.copy()) for name, table in weights.tables.items()}
    for table in tables.values():
        table.values[rows] += np.float32(by)
    return replace(weights, tables=tables, dense=weights.dense | {"bias": weights.dense["bias"] + 1})


def write_base(directory: Path, kind: Kind, weights: Weights) -> None:
    settings = settings_for(kind)
    publish(lambda draft: write_model(draft, settings, FEATURES, weights), directory)


def find(directory: Path, kind: Kind, weights: Weights) -> Patch | None:
    described = describe(settings_for(kind), FEATURES, weights)
    base = open_base(directory, 1)
    return None if base is None else find_patch(base, described, arrays_of(weights))


def publish_patch(directory: Path, patch: Patch, weights: Weights) -> Path:
    return publish(lambda draft: write_patch(draft, patch, arrays_of(weights)), directory)


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("kind", ["lr", "fwfm", "deepffm"])
def test_a_patch_on_its_base_is_the_whole_version(tmp_path: Path, kind: Kind, bits: int) -> None:
    before = weights_for(settings_for(kind))
    after = touched(before, [3, 500, 999], by=0.5)
    if bits != 32:
        before, after = quantize(before, bits), quantize(after, bits)  # type: ignore[arg-type]
    write_base(tmp_path, kind, before)
    patch = find(tmp_path, kind, after)
    assert patch is not None
    assert patch.worth_it
    path = publish_patch(tmp_path, patch, after)
    assert base_of(path) == 1
    found, wanted = arrays_of(read_model(path)[2]), arrays_of(after)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes()), name
    base_now = arrays_of(read_model(tmp_path / "1")[2])
    for name, array in arrays_of(before).items():
        assert base_now[name].tobytes() == array.tobytes(), "the base is as it was"


def test_a_patch_of_what_has_not_changed_holds_nothing(tmp_path: Path) -> None:
    weights = weights_for(settings_for("fm"))
    write_base(tmp_path, "fm", weights)
    patch = find(tmp_path, "fm", weights)
    assert patch is not None
    path = publish_patch(tmp_path, patch, weights)
    assert sorted(file.name for file in path.iterdir()) == ["headrace-manifest.json", "model.ctr"]


def test_a_patch_of_most_rows_is_not_worth_it(tmp_path: Path) -> None:
    weights = weights_for(settings_for("fm"))
    write_base(tmp_path, "fm", weights)
    patch = find(tmp_path, "fm", touched(weights, list(range(800))))
    assert patch is not None
    assert not patch.worth_it


def test_there_is_no_patch_of_another_model_or_a_damaged_or_missing_base(tmp_path: Path) -> None:
    weights = weights_for(settings_for("fm"))
    write_base(tmp_path, "fm", weights)
    assert find(tmp_path, "fwfm", weights_for(settings_for("fwfm"))) is None
    assert find(tmp_path, "fm", quantize(weights, 8)) is None
    (tmp_path / "1/dense.bias.npy").write_bytes(b"")
    assert find(tmp_path, "fm", weights) is None
    shutil.rmtree(tmp_path / "1")
    assert find(tmp_path, "fm", weights) is None


def test_without_its_own_base_a_patch_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    weights = weights_for(settings_for("fm"))
    write_base(tmp_path, "fm", weights)
    patch = find(tmp_path, "fm", touched(weights, [3]))
    assert patch is not None
    path = publish_patch(tmp_path, patch, touched(weights, [3]))
    (tmp_path / "1").rename(tmp_path / ".aside")
    with pytest.raises(
        LoadError, match=r"a patch of version 1, which does not exist; restore it, or publish"
    ):
        read_model(path)
    publish(
        lambda draft: write_model(
            draft, settings_for("fm"), FEATURES, weights_for(settings_for("fm"), seed=1)
        ),
        tmp_path,
        1,
    )
    with pytest.raises(
        LoadError, match=r"version 1, whose table\..*npy is not the one that the patch was made from"
    ):
        read_model(path)
    shutil.rmtree(tmp_path / "1")
    (tmp_path / ".aside").rename(tmp_path / "1")
    read_model(path)


def test_rows_beyond_the_table_never_reach_it(tmp_path: Path) -> None:
    weights = weights_for(settings_for("fm"))
    write_base(tmp_path, "fm", weights)
    patch = find(tmp_path, "fm", touched(weights, [3]))
    assert patch is not None
    path = publish_patch(tmp_path, patch, touched(weights, [3]))
    np.save(path / "table.embeddings.rows.npy", np.array([1001], np.uint32))
    with pytest.raises(LoadError, match="row 1001 is out of range for a table of 1001"):
        read_model(path)
    np.save(path / "table.embeddings.rows.npy", np.array([3, 4], np.uint32))
    with pytest.raises(
        LoadError, match=r"table.embeddings.values.npy: expected float32 \[2, 4\], got float32 \[1, 4\]"
    ):
        read_model(path)
    assert read_description(path).arrays["table.embeddings"].stored == "rows"
