"""Whose quota new keys count on: the name that a caller gives, else his address."""

from __future__ import annotations

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import ArchiveConfig, SpaceSettings
from headrace.frontends.archive.service import CALLER_HEADER, _caller
from headrace.frontends.calls import HttpCall
from headrace.storage.opening import open_queue, open_store
from headrace.storage.settings import MemoryQueue, MemoryStore
from headrace.telemetry.outcomes import Channel, Outcome


def test_a_name_wins_over_the_address_and_nobody_is_asked_without_a_quota() -> None:
    spaces = {
        "free": SpaceSettings(dimension=2),
        "limited": SpaceSettings(dimension=2, max_new_keys_per_second=1),
    }
    config = ArchiveConfig(store=MemoryStore(), queue=MemoryQueue(), spaces=spaces)
    with Archive(config, open_store(config.store), open_queue(config.queue)) as archive:
        call = HttpCall("POST", "/", {})
        assert _caller(archive.reader("limited"), call) == ""
        call.outcome = Outcome(Channel.REST, "[::1]:4711")
        assert _caller(archive.reader("limited"), call) == "[::1]"
        call.headers = [(CALLER_HEADER, b"ads" * 100)]
        assert _caller(archive.reader("limited"), call) == ("ads" * 100)[:200]
        assert _caller(archive.reader("free"), call) == ""
