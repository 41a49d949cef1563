"""Keys nest to a limit; texts and comments may have any dots."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError
from headrace.config.toml_reader import parse

MANY = ".".join("a" * 40)

VALUES = {
    "basic": f'"{MANY}"',
    "literal": f"'{MANY}'",
    "after an escaped quote": rf'"\" {MANY}"',
    "lines": f'"""\n{MANY}\n\\"""{MANY}"""',
    "lines that end with quotes": f'"""{MANY}"""""',
    "literal lines": f"'''\n{MANY}'\n'''",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_text_may_have_any_number_of_dots(value: str) -> None:
    found = parse(f"labels = [{value}]  # {MANY}", "rows.toml")
    assert MANY in str(found["labels"])


@pytest.mark.parametrize(
    "text",
    [
        f"{MANY} = 1",
        f"[{MANY}]",
        f"x = {{{MANY} = 1}}",
        ".".join(["'a'", '"b"'] * 20) + " = 1",
        *(f'x = [{value}, {{{MANY} = 1}}, "y"]' for value in VALUES.values()),
    ],
)
def test_a_key_of_too_many_parts_is_refused_wherever_it_is(text: str) -> None:
    with pytest.raises(ConfigError, match=r"rows\.toml: expected names of at most 32 parts"):
        parse(text, "rows.toml")


@pytest.mark.parametrize("text", ['"""\n\\"""', "'''\n'", '"\\', '"""\\', '"a\n"b', "'"])
def test_texts_without_an_end_are_no_toml(text: str) -> None:
    with pytest.raises(ConfigError, match="not TOML"):
        parse(f"x = {text}", "rows.toml")
