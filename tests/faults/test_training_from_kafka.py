"""``headrace train kafka://…``: killed and resumed, a broker that goes and comes back, poison."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.stream.block_reader import Reader, ReadSettings
from headrace.stream.kafka import topic_source
from headrace.stream.kafka.topic_address import parse_topic
from tests.faults.pausing import kill_paused, pausing
from tests.waiting import seconds_left
from tools.services.kafka_server import Kafka

HEADRACE = [sys.executable, "-m", "headrace"]
pytestmark = pytest.mark.rest


def run(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*HEADRACE, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def last(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows(place: Path, count: int, first: int = 0) -> Path:
    file = place / f"rows-{first}.arrows"
    words = ["stream", "generate", "--seed", 1, "--shape", "small", "--from-row", first, "--out", file]
    run(*words, "--rows", count)
    return file


def published(file: Path, topic: str, *words: object) -> None:
    run("stream", "publish", file, topic, "--partitions", 3, "--batch-rows", 500, *words)


@contextmanager
def training(*words: object) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A trainer that runs, and what it has said to people so far."""
    process = subprocess.Popen(
        [*HEADRACE, "train", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    told: list[str] = []
    reader = threading.Thread(target=lambda: told.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        yield process, told
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def wait_for(condition: Callable[[], bool], what: str, told: list[str]) -> None:
    until = time.monotonic() + seconds_left()
    while not condition():
        assert time.monotonic() < until, f"waited for {what}; it said: {told}"
        time.sleep(0.02)


def newest_checkpoint(directory: Path) -> int:
    """Return the number of the newest checkpoint, 0 without any; only the newest two are kept."""
    return max((int(one.name) for one in directory.glob("[0-9]*")), default=0)


def model_of(directory: Path) -> dict[str, bytes]:
    """The files of the newest version, but for its manifest, which has times."""
    newest = max((one for one in directory.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))
    return {one.name: one.read_bytes() for one in newest.iterdir() if not one.name.endswith(".json")}


def test_a_trainer_that_is_killed_goes_on_to_the_same_model(kafka_server: Kafka, tmp_path: Path) -> None:
    topic = f"kafka://{kafka_server.address}/killed"
    published(rows(tmp_path, 40_000), topic)
    common = ["--model", "fm", "--rows", 40_000, "--json", "--checkpoint-every-rows", 2000]
    whole = run("train", topic, *common, "--publish", tmp_path / "a/m", "--checkpoint", tmp_path / "ca")
    assert last(whole)["rows"] == 40_000
    words = [topic, *common, "--publish", tmp_path / "b/m", "--checkpoint", tmp_path / "cb"]
    paused = pausing(tmp_path / "paused", "filled", 3, tmp_path / "cb")  # in writing the third checkpoint
    kill_paused([*paused, "headrace", "train", *map(str, words)], tmp_path / "paused")
    assert newest_checkpoint(tmp_path / "cb") == 2
    resumed = run("train", *words, "--resume")
    assert last(resumed)["rows"] == 40_000
    assert last(resumed)["logloss"] == last(whole)["logloss"]
    assert model_of(tmp_path / "a/m")
    assert model_of(tmp_path / "b/m") == model_of(tmp_path / "a/m")
    refused = run("train", topic.replace("killed", "other"), *words[1:], "--resume", code=2)
    assert "expected topic killed, as in the checkpoint, got other" in refused.stderr


def test_a_broker_that_goes_is_waited_for(own_kafka: Any, tmp_path: Path) -> None:
    server: Kafka = own_kafka()
    topic = f"kafka://{server.address}/clicks"
    published(rows(tmp_path, 5000), topic)
    common = ["--model", "lr", "--rows", 10_000, "--json", "--checkpoint", tmp_path / "c"]
    with training(topic, *common, "--checkpoint-every-seconds", 0.2) as (process, told):
        wait_for(lambda: newest_checkpoint(tmp_path / "c") >= 1, "a checkpoint", told)
        server.kill()
        wait_for(lambda: any("does not answer" in line for line in told), "a word", told)
        assert process.poll() is None
        server.start()
        wait_for(lambda: any("answers again" in line for line in told), "a word", told)
        published(rows(tmp_path, 5000, 5000), topic)
        assert process.wait() == 0
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["rows"] == 10_000


def test_a_new_partition_is_found_while_others_are_busy(
    kafka_server: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    address = f"kafka://{kafka_server.address}/growing"
    run("stream", "publish", rows(tmp_path, 2000), address, "--partitions", 1, "--batch-rows", 1)
    with monkeypatch.context() as patched:
        patched.setattr(topic_source, "_LOOK_FOR_PARTITIONS_SECONDS", 0.0)
        source = topic_source.KafkaSource(topic_source.TopicRequest(topic=parse_topic(address, "input")))
        with Reader(source, ReadSettings(batch_rows=100)) as reader:
            blocks = iter(reader)
            next(blocks)
            admin = AdminClient(kafka_server.client_settings())
            admin.create_partitions([NewPartitions("growing", 2)])["growing"].result(30)
            deadline = time.monotonic() + seconds_left()
            while len(admin.list_topics("growing", timeout=10).topics["growing"].partitions) < 2:
                assert time.monotonic() < deadline
            for _ in range(10):
                next(blocks)
            assert [partition for partition, _ in source.position(1100).offsets] == [0, 1]


def test_a_message_that_is_no_rows_is_named_and_can_be_left_out(kafka_server: Kafka, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    topic = f"kafka://{kafka_server.address}/poisoned"
    run("stream", "publish", rows(tmp_path, 1000), topic, "--partitions", 1)
    producer = Producer(kafka_server.client_settings())
    producer.produce("poisoned", b"hello, I am no rows", partition=0)
    assert producer.flush(30) == 0
    run("stream", "publish", rows(tmp_path, 1000, 1000), topic)
    words = ["train", topic, "--model", "lr", "--rows", 2000, "--json", "--checkpoint", tmp_path / "c"]
    ended = run(*words, code=1)
    assert "row 0 of the message with offset 1 in partition 0 of topic poisoned" in ended.stderr
    assert (last(ended)["stopped"], last(ended)["rows"]) == ("error", 1000)
    assert last(run(*words, "--resume", "--skip-message", "0:1"))["rows"] == 2000


def test_wrong_topics_and_addresses_are_told_before_anything_is_learnt(kafka_server: Kafka) -> None:
    missing = run("train", f"kafka://{kafka_server.address}/missing", code=2)
    assert "topic missing at" in missing.stderr
    nobody = run("train", "kafka://127.0.0.1:9/clicks", code=2)
    assert "no Kafka broker answered at 127.0.0.1:9" in nobody.stderr
    assert "only" in run("train", "rows.arrows", "--skip-message", "0:1", code=2).stderr


def test_with_tls_and_a_password_from_a_file(own_kafka: Any, tmp_path: Path) -> None:
    server: Kafka = own_kafka(tls=True, password=True)
    settings = tmp_path / "client.properties"
    told = {key: value for key, value in server.client_settings().items() if key != "bootstrap.servers"}
    settings.write_text("".join(f"{key} = {value}\n" for key, value in told.items()))
    topic = f"kafka://{server.address}/secret"
    published(rows(tmp_path, 2000), topic, "--kafka-config", settings)
    words = ["train", topic, "--model", "lr", "--rows", 2000, "--json", "--kafka-config"]
    assert last(run(*words, settings))["rows"] == 2000
    settings.write_text(settings.read_text().replace(str(server.password), "wrong"))
    refused = run(*words, settings, code=2)
    assert "wrong" not in refused.stderr.replace("are wrong", "")
    assert "no Kafka broker answered" in refused.stderr
