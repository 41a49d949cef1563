"""What is wanted, from the process that looks at the disk to those that serve."""

from __future__ import annotations

from pathlib import Path

from headrace.config import BatchingPolicy, CachePolicy, ModelConfig, VersionPolicy
from headrace.lifecycle.desired_state import Wanted
from headrace.workers.desired_state_relay import ToldSource, told
from headrace.workers.messages import Wants, decoded, encoded

MODELS = {
    "m": Wanted(
        {3: Path("/models/m/3"), 12: Path("/models/m/12")},
        ModelConfig(
            versions=VersionPolicy(count=2, labels={"stable": 3}),
            batching=BatchingPolicy(max_batch_rows=8, allowed_batch_rows=(1, 8)),
        ),
        {"stable": 3},
        {3: -(2**63), 12: None},
        "it is pinned to version 3, which does not exist",
    ),
    "empty": Wanted(),
}


def sent(models: dict[str, Wanted], unusable: dict[str, str], workers: int = 2) -> Wants:
    message = decoded(encoded(told(models, unusable, workers)))
    assert isinstance(message, Wants)
    return message


def test_a_worker_wants_what_the_supervisor_has_seen() -> None:
    heard: list[object] = []
    source = ToldSource().made_for(lambda models, unusable: heard.append((models, unusable)))
    source.start()
    assert heard == [], "nothing was told yet"
    source.take(sent(MODELS, {"x": "no version in it"}))
    assert heard == [(MODELS, {"x": "no version in it"})]
    source.stop()
    source.take(sent({}, {}))
    assert len(heard) == 1


def test_what_was_told_before_the_start_is_said_then() -> None:
    heard: list[object] = []
    source = ToldSource()
    source.take(sent({}, {"x": "an earlier look"}))
    source.take(sent(MODELS, {}))
    source.made_for(lambda models, unusable: heard.append((models, unusable))).start()
    assert heard == [(MODELS, {})], "all that is wanted, said whole"


def test_caches_are_divided() -> None:
    config = ModelConfig(cache=CachePolicy(size_bytes=2**22))
    found = sent({"m": Wanted({1: Path("/m/1")}, config)}, {}, workers=4).models["m"].config
    assert found.cache.size_bytes == 2**20
