"""What a scrape says of versions' ages."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.serving.engine import Engine
from headrace.versions.layout import MANIFEST_FILE
from headrace.versions.manifest import publish, read_manifest
from tests.exposition import as_text
from tests.model_directories import affine

Scraped = dict[tuple[str, str], float]


def published(directory: Path, hours_ago: float, settings: str = "") -> Path:
    """A model whose version 1 was published some hours ago."""
    model = directory / "m"
    version = publish(lambda draft: (draft / "model.onnx").write_bytes(affine(2.0, 0.0)), model)
    manifest = read_manifest(version)
    assert manifest is not None
    created = (datetime.now(UTC) - timedelta(hours=hours_ago)).isoformat()
    older = msgspec.structs.replace(manifest, created=created)
    (version / MANIFEST_FILE).write_bytes(msgspec.json.encode(older))
    (model / "headrace.toml").write_text(settings)
    return directory


def scrape(directory: Path) -> Scraped:
    async def scenario() -> str:
        async with Engine(directory) as engine:
            return as_text(engine)

    text = asyncio.run(asyncio.wait_for(scenario(), 120))
    return {
        (sample.name, sample.labels.get("model", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(("hours", "stale"), [(3.0, 1.0), (1.0, 0.0)])
def test_a_model_is_stale_when_it_is_older_than_its_objective(
    tmp_path: Path, hours: float, stale: float
) -> None:
    scraped = scrape(published(tmp_path, hours, "[versions]\nmax_age_seconds = 7200\n"))
    assert scraped["headrace_model_age_seconds", "m"] == pytest.approx(hours * 3600, abs=60)
    assert scraped["headrace_model_max_age_seconds", "m"] == 7200
    assert scraped["headrace_model_stale", "m"] == stale


def test_without_an_objective_a_model_has_an_age_and_is_never_stale(tmp_path: Path) -> None:
    scraped = scrape(published(tmp_path, 1000.0))
    assert scraped["headrace_model_age_seconds", "m"] > 3.5e6
    assert ("headrace_model_stale", "m") not in scraped
