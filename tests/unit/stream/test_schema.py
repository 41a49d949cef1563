"""A schema says what each column is, and is wrong as early as it can be."""

from __future__ import annotations

import json

import pytest
import tomli_w

from headrace.base.errors import ConfigError
from headrace.stream.schema import Field, Schema, parse_schema
from tests.streams import CLICKS, schema_of


def test_a_schema_survives_its_json() -> None:
    assert parse_schema(CLICKS.encode()) == CLICKS


def test_a_schema_can_be_written_as_toml() -> None:
    schema = parse_schema('[[fields]]\nname = "y"\nrole = "label"\n[[fields]]\nname="a"\nrole="dense"\n')
    assert [field.name for field in schema.of("label", "dense")] == ["a", "y"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"fields": [{"name": "a", "role": "colour"}]}', "colour"),
        ('{"fields": [{"name": "a", "role": "dense", "bucket": 3}]}', "bucket"),
        ('{"fields": [], "format": 99}', "newer"),
        ('{"fields": [{"name": "a", "role": "dense"}, {"name": "a", "role": "dense"}]}', "twice"),
        ('{"fields": [{"name": "a", "role": "label"}, {"name": "b", "role": "label"}]}', "only one"),
        ('{"fields": [{"name": "a", "role": "categorical", "buckets": 1}]}', "buckets"),
        ('{"fields": [{"name": "a", "role": "categorical", "admit": 256}]}', "expected admit of 1 to 255"),
        ("fields = 3", "fields: expected a list, got `int`"),
        ("fields = [", "rows.toml"),
    ],
)
def test_a_wrong_schema_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        parse_schema(text, "rows.toml")
    assert error.value.message.startswith("rows.toml")


def test_fields_that_share_a_table_agree_about_it() -> None:
    with pytest.raises(ConfigError, match="share the table"):
        schema_of(a={"table": "t", "buckets": 10}, b={"table": "t", "buckets": 11})
    with pytest.raises(ConfigError, match="the same buckets, keys, admit and expire_rows"):
        schema_of(a={"table": "t", "keys": "exact"}, b={"table": "t", "keys": "exact", "expire_rows": 9})


def test_the_one_field_of_a_role_is_found_or_none_is() -> None:
    schema = Schema(fields=(Field(name="y", role="label"),))
    assert schema.one("label") is schema.fields[0]
    assert schema.one("weight") is None


def test_a_separator_without_several_values_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"separator: expected none for a field of one value.*'|'"):
        Field(name="a", role="categorical", separator="|")


def test_a_dense_field_of_several_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"size: expected 1 for a dense field.*got 3; make it a vector"):
        Field(name="a", role="dense", size=3)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"role": "dens"}, r"rows: fields\[1\]\.role: expected one of 'label', .*'dense', .*, got 'dens'"),
        (
            {"role": "dense", "bucket": 9},
            r"rows: fields\[1\]\.bucket: unknown setting; did you mean buckets\?",
        ),
        ({"role": "dense", "size": "4"}, r"rows: fields\[1\]\.size: expected `int`, got `str`"),
    ],
)
def test_a_wrong_setting_of_a_field_is_named_with_what_is_known(
    settings: dict[str, object], message: str, as_json: bool
) -> None:
    table = {"fields": [{"name": "y", "role": "label"}, {"name": "a", **settings}]}
    with pytest.raises(ConfigError, match=message):
        parse_schema(json.dumps(table) if as_json else tomli_w.dumps(table), "rows")
