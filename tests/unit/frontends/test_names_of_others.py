"""Metrics by other servers' names: each is given, or is told as not given with the reason."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.config import ServerConfig
from headrace.frontends.metrics.tensorflow_names import TensorFlowMetrics
from headrace.frontends.metrics.triton_names import COUNTERS
from headrace.serving.engine import Engine
from tests.exposition import as_text
from tests.model_directories import affine, write

PAGE = (Path(__file__).resolve().parents[3] / "docs/metrics.md").read_text("utf-8")

# docs/user_guide/metrics.md of triton-inference-server/server.
TRITON = re.findall(
    r"\S+",
    """
nv_cache_hit_duration_per_model nv_cache_miss_duration_per_model nv_cache_num_hits_per_model
nv_cache_num_misses_per_model nv_cpu_memory_total_bytes nv_cpu_memory_used_bytes nv_cpu_utilization
nv_energy_consumption nv_gpu_memory_total_bytes nv_gpu_memory_used_bytes nv_gpu_power_limit
nv_gpu_power_usage nv_gpu_utilization nv_inference_compute_infer_duration_us
nv_inference_compute_infer_summary_us nv_inference_compute_input_duration_us
nv_inference_compute_input_summary_us nv_inference_compute_output_duration_us
nv_inference_compute_output_summary_us nv_inference_count nv_inference_exec_count
nv_inference_first_response_histogram_ms nv_inference_pending_request_count
nv_inference_queue_duration_us nv_inference_queue_summary_us nv_inference_request_duration_us
nv_inference_request_failure nv_inference_request_success nv_inference_request_summary_us
nv_pinned_memory_pool_total_bytes nv_pinned_memory_pool_used_bytes
""",
)

# What tensorflow_serving/**/*.{cc,h} declares of counters, gauges and samplers.
TENSORFLOW = re.findall(
    r"\S+",
    """
batching_session:queuing_latency batching_session:wrapped_run_count
saved_model_with_batching:queuing_latency TASK:padding_size TASK:input_batch_size
TASK:processed_batch_size request_log_count mlmd_map model_warmup_latency model_warmup_records_read
request_example_counts request_example_count_total request_count runtime_latency request_latency
""",
)


LABELS = ("model", "version", "reason")


def told(name: str) -> tuple[set[str], set[str]]:
    """The names of the page's tables that are given, and that are not."""
    given, refused = set(), set()
    for table in PAGE.partition("## Names of other servers")[2].split("\n\n"):
        rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
        for names, why in rows:
            assert why.strip()
            found = set(re.findall(rf"`({name}[\w:]*)`", names))
            (refused if table.startswith("| not given") else given).update(found)
    return given, refused


def test_tritons_names_are_given_or_told_as_not_given() -> None:
    given, refused = told("nv_")
    assert given == {one.name for one in COUNTERS}
    assert not given & refused
    assert sorted(given | refused) == sorted(TRITON)


def test_tensorflow_servings_names_are_given_or_told_as_not_given() -> None:
    given, refused = told(":tensorflow:serving:")
    declared = re.findall(r"# TYPE (\S+)", "".join(TensorFlowMetrics(lambda _: True).pieces()))
    assert given == set(declared)
    assert sorted(given | refused) == sorted(f":tensorflow:serving:{name}" for name in TENSORFLOW)


def scraped(directory: Path, *, wanted: bool) -> dict[tuple[str, ...], float]:
    async def scenario() -> str:
        async with Engine(directory, config=ServerConfig(triton_metrics=wanted)) as engine:
            for _ in range(3):
                await engine.predict("m", {"x": [1.0, 2.0]})
            return as_text(engine)

    return {
        (sample.name, *(sample.labels[name] for name in LABELS if name in sample.labels)): sample.value
        for one in text_string_to_metric_families(asyncio.run(asyncio.wait_for(scenario(), 120)))
        for sample in one.samples
        if sample.name.startswith("nv_")
    }


@pytest.mark.parametrize("settings", ["", "[cache]\nsize_bytes = 100000\n"], ids=["plain", "cached"])
def test_the_values_are_those_of_the_version(tmp_path: Path, settings: str) -> None:
    write(tmp_path, "m", 7, affine(2.0, 0.0), settings)
    found = scraped(tmp_path, wanted=True)
    assert found["nv_inference_request_success", "m", "7"] == 3
    assert found["nv_inference_count", "m", "7"] == 6
    assert found["nv_inference_exec_count", "m", "7"] == (1 if settings else 3)
    reasons = {key[3] for key in found if key[0] == "nv_inference_request_failure"}
    assert reasons == {"REJECTED", "CANCELED", "BACKEND", "OTHER"}
    times = [
        found[f"nv_inference_{name}_duration_us", "m", "7"] for name in ("queue", "compute_infer", "request")
    ]
    assert times[0] + times[1] == times[2] > 0
    assert {name for name, *_ in found if name.startswith("nv_cache_")} == (
        {"nv_cache_num_hits_per_model", "nv_cache_num_misses_per_model"} if settings else set()
    )
    if settings:
        assert found["nv_cache_num_hits_per_model", "m", "7"] == 2


def test_nothing_is_given_by_their_names_unless_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "m", 1, affine(2.0, 0.0))
    assert scraped(tmp_path, wanted=False) == {}
