"""The page of the settings lists every setting with its default."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from headrace.config import (
    AccessLog,
    Audit,
    BatchingPolicy,
    Cors,
    ImageConfig,
    InputSource,
    IsolationPolicy,
    Limits,
    RuntimeConfig,
    ServerConfig,
    SignatureConfig,
    Tls,
    Tracing,
    VersionPolicy,
    WarmUpPolicy,
)
from headrace.config.access import Jwt

SECTIONS = {
    "[versions]": VersionPolicy,
    "[batching]": BatchingPolicy,
    "[warm_up]": WarmUpPolicy,
    "[runtime]": RuntimeConfig,
    "[signature]": SignatureConfig,
    "[image]": ImageConfig,
    "[inputs.NAME]": InputSource,
    "[isolation]": IsolationPolicy,
    "Top level": ServerConfig,
    "[limits]": Limits,
    "[tls]": Tls,
    "[access.jwt]": Jwt,
    "[cors]": Cors,
    "[tracing]": Tracing,
    "[access_log]": AccessLog,
    "[audit]": Audit,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_documentation_lists_every_setting_with_its_default(section: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text("utf-8")
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
    needed: dict[str, object] = {
        "[inputs.NAME]": {"space": "x", "key": "x"},
        "[image]": {"size": (1, 1)},
    }.get(section, {})
    defaults = SECTIONS[section](**needed)
    expected = {
        name: "–" if value is None or name in needed else f"`{msgspec.json.encode(value).decode()}`"
        for name in defaults.__struct_fields__
        if not isinstance(value := getattr(defaults, name), msgspec.Struct) and name != "models"
    }
    assert listed == expected
