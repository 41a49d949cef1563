"""Read TOML, merge tables, and convert them to settings, with errors in terms of the file."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from headrace.base.errors import ConfigError
from headrace.base.files import read_text
from headrace.config.checks import wrong

Table = Mapping[str, object]
_StructT = TypeVar("_StructT", bound=msgspec.Struct)


def parse(text: str, where: str) -> dict[str, object]:
    """Parse TOML.

    Args:
        text: The file's content.
        where: Name of the file in errors.

    Raises:
        ConfigError: The text is not TOML, is nested too deeply, or has an integer of more than 64 bits.
    """
    # Before parsing, whose cost grows with the square of a key's parts.
    if _TOO_DEEP.search(_TEXT.sub('""', text)):
        raise ConfigError(f"{where}: expected names of at most {_MOST_PARTS} parts, separated by dots")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{where}: lists or tables are nested too deeply") from None
    except ValueError as error:  # a number of 5,000 digits raises a ValueError that is no TOMLDecodeError
        raise ConfigError(f"{where}: not TOML: {error}") from error
    _check(table, where)
    return table


def read_table(file: Path, where: str) -> dict[str, object]:
    """Read a TOML file, which may be a pipe.

    Args:
        file: The file.
        where: Name of the file in errors.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    try:
        text = read_text(file, _LARGEST_FILE_BYTES, ordinary=False)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from error
    return parse(text, where)


_LARGEST_FILE_BYTES = 2**24
_MOST_PARTS = 32
_INTEGERS = 2**63
# Strings, up to their end or to the place where the parser refuses them, and comments.
_TEXT = re.compile(
    r""""{3}(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5}|\\?\Z)|"(?:[^"\\\n]|\\[^\n])*+"?"""
    r"""|'{3}(?:[^']|'(?!''))*+(?:'{3,5}|\Z)|'[^'\n]*+'?|\#[^\n]*+""",
    re.DOTALL,
)
_PART = r"""(?:[\w-]++|"")[ \t]*+"""
_TOO_DEEP = re.compile(rf"(?<![\w-])(?:{_PART}\.[ \t]*+){{{_MOST_PARTS}}}")


def _check(value: object, where: str, key: str = "", most: int = _MOST_PARTS) -> None:
    """Refuse nesting that is too deep, and integers of over 64 bits, which Python may refuse to print."""
    if isinstance(value, int) and not -_INTEGERS <= value < _INTEGERS:
        raise wrong(f"{where}: {key}", "a whole number of at most 64 bits", value)
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        if most == 0:
            raise ConfigError(f"{where}: expected at most {_MOST_PARTS} levels of nested tables and lists")
        _check(one, where, f"{key}.{name}" if key else str(name), most - 1)


def merged(below: Table, above: Table) -> dict[str, object]:
    """Merge two tables; ``above`` overrides ``below``, key by key where both hold tables."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            result[key] = merged(under, value)
        else:
            result[key] = value
    return result


def _converted(kind: type[Any], value: object) -> object:
    """Convert TOML values to types that msgspec does not know."""
    if kind is not Path:
        return value
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    return Path(value)


_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_LITERAL = re.compile(r"Invalid enum value (.*)")


def convert(table: Table, kind: type[_StructT], where: str) -> _StructT:
    """Convert a table to settings.

    Args:
        table: The settings by name.
        kind: The class of the settings.
        where: Name of the table in errors.

    Raises:
        ConfigError: A setting is unknown or wrong.
    """
    try:
        return msgspec.convert(table, kind, dec_hook=_converted)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {explained(error, kind)}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error


def explained(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """Return msgspec's error in terms of the key, the expected value and the actual one.

    Args:
        error: The error that msgspec raised.
        kind: The class of the settings.
    """
    said, _, at = str(error).partition(" - at `$")
    path = at.rstrip("`").lstrip(".")
    if unknown := _UNKNOWN.fullmatch(said):
        key = unknown[1]
        known = list(_fields(_at(kind, path)))
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        return f"{f'{path}.' if path else ''}{key}: unknown setting; {hint}"
    if literal := _LITERAL.fullmatch(said):
        told = (
            "a whole number" if value is int else repr(value) for value in _literals(_at(kind, path)) if value
        )
        allowed = ", ".join(dict.fromkeys(told))
        return f"{path}: expected one of {allowed}, got {literal[1]}"
    said = said.replace("`object`", "a table").replace("`array`", "a list")
    return f"{path}: {said[:1].lower()}{said[1:]}" if path else said


def _literals(kind: object) -> list[object]:
    """Return the values of a Literal, or of a union of several."""
    return [
        value for one in get_args(kind) for value in (_literals(one) if get_origin(one) is Literal else [one])
    ]


def _at(kind: object, path: str) -> object:
    """Return the type of the setting at a path such as ``batching.instances`` or ``fields[1].role``."""
    for step in re.findall(r"\[.*?\]|[^.\[]+", path):
        kind = _inside(kind) if step[0] == "[" else _fields(kind).get(step)
    return kind


def _inside(kind: object) -> object:
    """Return the element type of a list or a tuple, or the value type of a table with arbitrary names."""
    held = [one for one in get_args(kind) if one is not ...]
    return held[-1] if held else None


def _fields(kind: object) -> dict[str, object]:
    """Return the settings of a struct by name; for a union of structs, those of all."""
    if get_origin(kind) is UnionType:
        return {name: one for inner in get_args(kind) for name, one in _fields(inner).items()}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return {name: hints[name] for name in kind.__struct_fields__}
    return {}
