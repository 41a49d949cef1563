"""What a stream's rows consist of: one Field a column, and the Schema they make.

A stream carries its schema as JSON in the metadata of its Arrow schema, under ``headrace``; the same
JSON, or the same as TOML, may be given beside a stream that has none.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Literal

import msgspec

from headrace.config.reading import explained, parse
from headrace.errors import ConfigError
from headrace.formats import check_format, check_number

METADATA_KEY = b"headrace"
"""Where an Arrow schema keeps the stream's schema."""

FORMAT = 1
"""The format of schemas that is written; newer ones are not read."""

MOST_VIEWS = 2**24
"""The most views of one row: above it, float32 does not tell whole numbers apart."""

MOST_ADMIT = 255
"""How often a value can be counted."""

_OF_TABLE = ("buckets", "keys", "admit", "expire_rows")  # what fields that share a table agree in

Role = Literal["label", "views", "weight", "timestamp", "truth", "categorical", "dense", "vector", "ignored"]
Keys = Literal["hash", "bucket", "exact"]
Unit = Literal["", "s", "ms", "us", "ns"]
Pooling = Literal["mean", "sum"]


class Field(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column of a stream.

    Attributes:
        name: The column's name.
        role: What it is to the learner. ``label`` is 0 or 1, the only role a stream to learn from must have;
            with ``views`` a row is of so many views, and the label counts the clicks among them;
            ``weight`` how much a row counts; ``timestamp`` when it happened, in microseconds since 1970;
            ``truth`` the probability that a generator drew the label with; ``categorical`` values each get a
            row of a table; ``dense`` a number; ``vector`` many numbers, such as the embedding of an image;
            one that is missing, or all zeros, is no vector.
        table: The table of a categorical field; fields that name the same one share it. Its own if empty.
        buckets: How many rows the table has; shared tables say the same number.
        keys: How a categorical value finds its row: ``hash`` spreads any value (text, bytes or an integer)
            over the buckets; ``bucket`` means the values are row numbers below ``buckets`` already;
            ``exact`` gives each value that is seen often enough a row of its own.
        admit: How many times an exact value is seen before it gets a row; at most 255.
        expire_rows: After how many rows of the stream without it an exact value loses its row; 0 for never.
        values: The most values a categorical field has in one row; more are cut off. 1 for single-valued.
        pooling: How the rows of several values become one.
        separator: What stands between the values, or a vector's numbers, where they come as one text: for
            ``headrace stream encode``, which makes lists of them.
        size: How many numbers a vector has.
        unit: What whole numbers of a timestamp count, for ``headrace stream encode``; empty for microseconds,
            of which those outside 1990 to 2100 are refused.
        text: Whether a categorical field that hashes, or is exact, has text or bytes for values; integers
            otherwise. Both hash differently, so a server must know which of them a request shall carry.
        context: Whether the field belongs to the request as a whole (the user, the page) and not to one of
            its candidates: a request for many candidates says it once.
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
            raise ConfigError(f"field {self.name!r}: admit is 1 to {MOST_ADMIT}, expire_rows 0 or more")

        if self.separator and not self.listed:
            raise ConfigError(
                f"field {self.name!r}: separator: it stands between values, got {self.separator!r} for a "
                "field of one; say how many it may have (values), or leave it out"
            )

    @property
    def listed(self) -> bool:
        """Whether a row has a list of values, or of numbers."""
        return self.role == "vector" or (self.role == "categorical" and self.values > 1)

    @property
    def table_name(self) -> str:
        """The table that a categorical field's values are rows of."""
        return self.table or self.name


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What one row of a stream consists of.

    Attributes:
        fields: The columns; their order means nothing.
        format: The version of this format.
        generator: The settings of the generator that made the stream; empty for real rows.
        spaces: The versions of an archive's spaces that the rows were joined with; left out if with none.
    """

    fields: tuple[Field, ...]
    format: int = FORMAT
    generator: dict[str, float] = {}
    spaces: dict[str, int] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Check that the fields fit together."""
        check_number(self.format, FORMAT, "schema", ConfigError)
        for name, count in Counter(field.name for field in self.fields).items():
            if count > 1:
                raise ConfigError(f"schema: field {name!r} is there twice")
        for role in ("label", "views", "weight", "timestamp", "truth"):
            if len(self.of(role)) > 1:
                raise ConfigError(f"schema: only one field can be the {role}, got {len(self.of(role))}")
        if self.of("views") and not self.of("label"):
            raise ConfigError("schema: views without a label: say which field counts the clicks among them")
        tables: dict[str, Field] = {}
        for field in self.of("categorical"):
            first = tables.setdefault(field.table_name, field)
            if any(getattr(first, one) != getattr(field, one) for one in _OF_TABLE):
                raise ConfigError(
                    f"schema: {first.name!r} and {field.name!r} share the table {field.table_name!r}; "
                    f"give both the same {', '.join(_OF_TABLE[:-1])} and {_OF_TABLE[-1]}"
                )

    def of(self, *roles: str) -> tuple[Field, ...]:
        """The fields of some roles, by name."""
        return tuple(
            sorted((field for field in self.fields if field.role in roles), key=lambda one: one.name)
        )

    def one(self, role: Role) -> Field | None:
        """The field of a role that only one can have; None if there is none."""
        return next(iter(self.of(role)), None)

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """The fields by name."""
        return {field.name: field for field in self.fields}

    def encode(self) -> bytes:
        """As JSON, for a stream's metadata and a model's description."""
        return msgspec.json.encode(self)


def parse_schema(content: bytes | str, where: str = "schema") -> Schema:
    """Read a schema from JSON or TOML.

    Args:
        content: The text; JSON if it starts with a brace.
        where: What to call it in errors.

    Raises:
        ConfigError: It is neither, of a newer format, or a setting is unknown or wrong.
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
