"""Schemas of streams: one Field per column.

A stream carries its schema as JSON in the metadata of its Arrow schema, under ``headrace``. The same JSON, or
the equivalent TOML, may be passed separately: it replaces the stream's own, which may be missing.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Literal

import msgspec

from headrace.base.errors import ConfigError
from headrace.base.format_numbers import check_format, check_number
from headrace.config.toml_reader import explained, parse

METADATA_KEY = b"headrace"
"""Key of the stream's schema in the metadata of an Arrow schema."""

FORMAT = 1
"""The version of the schema format that is written; newer ones are refused."""

MOST_VIEWS = 2**24
"""Maximum number of views per row: above it, float32 cannot represent every whole number."""

MOST_ADMIT = 255
"""Maximum of ``Field.admit``."""

_OF_TABLE = ("buckets", "keys", "admit", "expire_rows")  # must be equal for fields that share a table

Role = Literal["label", "views", "weight", "timestamp", "truth", "categorical", "dense", "vector", "ignored"]
Keys = Literal["hash", "bucket", "exact"]
Unit = Literal["", "s", "ms", "us", "ns"]
Pooling = Literal["mean", "sum"]


class Field(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column of a stream.

    Attributes:
        name: The column's name.
        role: Its meaning to the learner. ``label`` is 0 or 1, and the only role that learning requires.
            With ``views``, a row counts as that many views, and its label is the number of clicks among them.
            ``weight`` is the weight of a row, ``timestamp`` its time in microseconds since 1970, and
            ``truth`` the probability that a generator drew the label with. Each ``categorical`` value has a
            row of a table. ``dense`` is a number, and ``vector`` many numbers, such as the embedding of an
            image; null or all zeros means no vector.
        table: The table of a categorical field; fields that name the same one share it. The field's name if
            empty.
        buckets: Number of rows of the table; equal for fields that share it.
        keys: How a categorical value maps to its row. ``hash`` spreads any value (text, bytes or an integer)
            over the buckets. ``bucket`` means that the values are row numbers below ``buckets`` already.
            ``exact`` gives each value that is frequent enough a row of its own.
        admit: Number of occurrences after which an exact value gets a row; at most 255.
        expire_rows: An exact value loses its row after this many rows of the stream without it; 0 for never.
        values: Maximum number of values of a categorical field per row; more are cut off. 1 for
            single-valued.
        pooling: How the rows of several values are combined.
        separator: The separator of values, or of a vector's numbers, in one text, which ``headrace stream
            encode`` splits into lists.
        size: Number of elements of a vector.
        unit: Unit of integer timestamps, for ``headrace stream encode``; empty for microseconds, which must
            then be from 1990 to 2100.
        text: Whether the values of a categorical field that is hashed or exact are text or bytes; otherwise
            they are integers. The two hash differently, so a server must know which one requests carry.
        context: Whether the field belongs to the request as a whole (the user, the page) and not to a
            candidate: a request for many candidates carries it once.
    """

    name: str
    role: Role
    table: str = ""
    buckets: int = 2**18
    keys: Keys = "hash"
    admit: int = 2
    expire_rows: int = 0
    values: int = 1
    pooling: Pooling = "mean"
    separator: str = ""
    size: int = 1
    unit: Unit = ""
    text: bool = False
    context: bool = False

    def __post_init__(self) -> None:
        """Check each setting."""
        for setting, least, most in (("buckets", 2, 2**31), ("values", 1, 4096), ("size", 1, 65536)):
            value = getattr(self, setting)
            if not least <= value <= most:
                raise ConfigError(f"field {self.name!r}: {setting}: expected {least} to {most}, got {value}")
        if not 1 <= self.admit <= MOST_ADMIT or self.expire_rows < 0:
            raise ConfigError(
                f"field {self.name!r}: expected admit of 1 to {MOST_ADMIT}, and expire_rows of 0 or more"
            )
        if self.role == "dense" and self.size != 1:
            raise ConfigError(
                f"field {self.name!r}: size: expected 1 for a dense field, which is one number, got "
                f"{self.size}; make it a vector (role), or leave it out"
            )
        if self.separator and not self.listed:
            raise ConfigError(
                f"field {self.name!r}: separator: expected none for a field of one value, got "
                f"{self.separator!r}; set the largest number of values (values), or leave it out"
            )

    @property
    def listed(self) -> bool:
        """Whether a row has a list of values or numbers."""
        return self.role == "vector" or (self.role == "categorical" and self.values > 1)

    @property
    def table_name(self) -> str:
        """The name of a categorical field's table."""
        return self.table or self.name


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The columns of a stream.

    Attributes:
        fields: The columns; their order has no meaning.
        format: The version of this format.
        generator: The settings of the generator that made the stream; empty for real rows.
        spaces: The archive's space versions that the rows were joined with; unset without a join.
    """

    fields: tuple[Field, ...]
    format: int = FORMAT
    generator: dict[str, float] = {}
    spaces: dict[str, int] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Check that the fields are consistent."""
        check_number(self.format, FORMAT, "schema", ConfigError)
        for name, count in Counter(field.name for field in self.fields).items():
            if count > 1:
                raise ConfigError(f"schema: field {name!r} occurs twice")
        for role in ("label", "views", "weight", "timestamp", "truth"):
            if len(self.of(role)) > 1:
                raise ConfigError(f"schema: only one field can be the {role}, got {len(self.of(role))}")
        if self.of("views") and not self.of("label"):
            raise ConfigError(
                "schema: views without a label: give the role label to the field that counts the clicks"
            )
        tables: dict[str, Field] = {}
        for field in self.of("categorical"):
            first = tables.setdefault(field.table_name, field)
            if any(getattr(first, one) != getattr(field, one) for one in _OF_TABLE):
                raise ConfigError(
                    f"schema: {first.name!r} and {field.name!r} share the table {field.table_name!r}; "
                    f"give both the same {', '.join(_OF_TABLE[:-1])} and {_OF_TABLE[-1]}"
                )

    def of(self, *roles: str) -> tuple[Field, ...]:
        """Return the fields with one of the roles, sorted by name."""
        return tuple(
            sorted((field for field in self.fields if field.role in roles), key=lambda one: one.name)
        )

    def one(self, role: Role) -> Field | None:
        """Return the only field with a role; None if there is none."""
        return next(iter(self.of(role)), None)

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """The fields, by name."""
        return {field.name: field for field in self.fields}

    def encode(self) -> bytes:
        """Return JSON for a stream's metadata and a model's description."""
        return msgspec.json.encode(self)


def parse_schema(content: bytes | str, where: str = "schema") -> Schema:
    """Parse a schema from JSON or TOML.

    Args:
        content: The text; JSON if it starts with a brace.
        where: Name of the source, for errors.

    Raises:
        ConfigError: It is neither, has a newer format, or a setting is unknown or invalid.
    """
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    is_json = text.lstrip().startswith("{")
    table = {} if is_json else parse(text, where)
    if is_json:
        check_format(text, FORMAT, where, ConfigError)
    else:
        check_number(table.get("format"), FORMAT, where, ConfigError)
    try:
        return msgspec.json.decode(text, type=Schema) if is_json else msgspec.convert(table, Schema)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {explained(error, Schema)}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error
