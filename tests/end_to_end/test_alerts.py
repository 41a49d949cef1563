"""Each alert is made to fire, by a real Prometheus that scrapes real servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import yaml

from headrace.frontends.access_control import METRICS as ACCESS_METRICS
from headrace.frontends.archive.metrics import METRICS as ARCHIVE_METRICS
from headrace.frontends.metrics.disk_space import METRICS as DISK_METRICS
from headrace.frontends.metrics.engine_metrics import METRICS
from headrace.frontends.transport.certificates import METRICS as TLS_METRICS
from headrace.versions.layout import MANIFEST_FILE
from headrace.versions.manifest import publish, read_manifest
from headrace.workers.metrics import METRICS as WORKERS_METRICS
from tests.certificates import Authority
from tests.faults.isolated_models import children_of
from tests.faults.worker_processes import workers_of
from tests.model_directories import affine, write
from tests.prometheus import scraping
from tests.running_server import RunningServer
from tests.unit.access.keys_of_tests import entry, key_of, written

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/alerts.yml"
BOARD = ROOT / "deploy/grafana/headrace.json"
SHORT = {
    "3d": "8s",
    "6h": "6s",
    "1h": "5s",
    "30m": "4s",
    "15m": "30s",
    "10m": "1s",
    "5m": "4s",
    "2m": "1s",
    "1m": "1s",
}
"""The windows and waits of the rules, in this test."""

MODEL = """
import time

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def predict(self, inputs):
        BODY
"""
WAITS = """
import pathlib
import time

while pathlib.Path(FLAG).exists() == IS_THERE:
    time.sleep(0.05)
"""


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bheadrace_\w+", text))


ALL = (*METRICS, *DISK_METRICS, *ACCESS_METRICS, *ARCHIVE_METRICS, *TLS_METRICS, *WORKERS_METRICS)


def exposed() -> set[str]:
    """The names of all series that a server can have."""
    found = set()
    for metric in ALL:
        ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
        found |= {metric.name + end for end in ends[metric.kind]}
    return found


def test_rules_and_dashboard_name_metrics_that_there_are() -> None:
    rules = RULES.read_text("utf-8")
    used = {name for expression in expressions(rules) for name in names_in(expression)}
    assert len(used) > 10
    assert used <= exposed(), used - exposed()
    board = json.loads(BOARD.read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    asked += [variable["query"] for variable in board["templating"]["list"]]
    shown = {name for expression in asked for name in names_in(expression)}
    assert len(shown) > 10
    assert shown <= exposed(), shown - exposed()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def expressions(rules: str) -> list[str]:
    """The expressions of a file of rules, without its names and texts."""
    return [
        part.partition("\n        for:")[0].partition("\n        labels:")[0]
        for part in rules.split("expr:")[1:]
    ]


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    """Those that need days, or a certificate about to expire, fire on series that are made up."""
    for command in (
        ["check", "rules", str(RULES)],
        ["test", "rules", str(RULES.with_name("alerts_test.yml"))],
    ):
        ran = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_promtool_is_given_trouble_for_each_rule_and_a_healthy_server_for_all() -> None:
    rules = RULES.read_text("utf-8")
    alerts = set(re.findall(r"alert: (\w+)", rules))
    tests = yaml.safe_load(RULES.with_name("alerts_test.yml").read_text("utf-8"))["tests"]
    expected = [{one["alertname"]: one["exp_alerts"] for one in test["alert_rule_test"]} for test in tests]
    assert {name for test in expected for name, fired in test.items() if fired} == alerts
    assert expected[-1] == {name: [] for name in alerts}
    healthy = {name for one in tests[-1]["input_series"] for name in names_in(one["series"])}
    assert healthy == {name for expression in expressions(rules) for name in names_in(expression)}


def test_metrics_documented_for_alerting_are_used_in_a_rule() -> None:
    rules = RULES.read_text("utf-8")
    named = [one.name for one in ALL if "alert on" in one.help]
    assert named
    assert [name for name in named if name not in rules] == []


def test_every_alert_is_explained() -> None:
    for page in ("docs/alerts.md", "docs/operations.md"):
        told = (ROOT / page).read_text("utf-8")
        for name in re.findall(r"alert: (\w+)", RULES.read_text("utf-8")):
            assert f"`{name}`" in told, (page, name)


def short_rules() -> str:
    """The rules with short windows."""
    return re.sub(r"(?<=\[)\w+(?=\])|(?<=for: )\w+", lambda found: SHORT[found[0]], RULES.read_text("utf-8"))


@contextmanager
def going_on(*steps: Callable[[], object]) -> Iterator[None]:
    """Each step is done again and again, in a thread of its own."""
    enough = threading.Event()

    def go(step: Callable[[], object]) -> None:
        while not enough.is_set():
            try:
                step()
            except OSError:
                return  # the server has gone

    threads = [threading.Thread(target=go, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def troubled_models(folder: Path) -> Path:
    """A model for each trouble."""
    models = folder / "models"
    good = affine(2.0, 1.0)
    write(models, "late", 1, good, "[objective]\nlatency_seconds = 1e-9\n")
    write(models, "small", 1, good, "[batching]\nmax_queue_rows = 1\nmax_batch_rows = 1\n")
    write(
        models, "raises", 1, MODEL.replace("BODY", "raise ValueError('no')"), "[warm_up]\nenabled = false\n"
    )
    slow = MODEL.replace("BODY", "time.sleep(0.05); return {'y': inputs['x']}")
    write(models, "slow", 1, slow, "[batching]\nmax_batch_rows = 1\ninstances = 1\n")
    write(models, "update", 1, good, "[versions]\nload_attempts = 1\n")
    write(models, "update", 2, b"no model")
    write(models, "never", 1, b"no model", "[versions]\nload_attempts = 1\n")
    old = publish(lambda draft: (draft / "model.onnx").write_bytes(good), models / "old")
    manifest = read_manifest(old)
    assert manifest is not None
    created = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    (old / MANIFEST_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, created=created)))
    (models / "old" / "headrace.toml").write_text("[versions]\nmax_age_seconds = 60\n")
    isolated = waits_while(folder / "away", there=True) + slow
    write(models, "isolated", 1, isolated, "isolate = true\n")
    return models


def waits_while(flag: Path, *, there: bool) -> str:
    """Code of a model that is not loaded while a file is there, or is not."""
    return WAITS.replace("FLAG", repr(str(flag))).replace("IS_THERE", str(there))


@contextmanager
def nearly_full(folder: Path) -> Iterator[bool]:
    """A small disk that has little room left; whether there is one: only root may mount it."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=False).returncode:
        yield False
        return
    try:
        (folder / "ballast").write_bytes(bytes(3_900_000))
        yield True
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def workers_in_trouble(folder: Path) -> Iterator[tuple[RunningServer, dict[str, object]]]:
    """Two workers with a certificate that soon expires, and callers' keys; and how they are scraped."""
    models, keys = folder / "served by workers", written(folder / "keys.toml", entry("prometheus"))
    write(models, "good", 1, affine(2.0, 1.0))
    authority = Authority(folder)
    authority.write_server(expires=datetime.now(UTC) + timedelta(days=1))
    options = ("--workers", "2", "--access-file", str(keys), *authority.options())
    with RunningServer(models, *options, tls=authority.context()) as server:
        yield (
            server,
            {
                "job_name": "headrace workers",
                "scheme": "https",
                "tls_config": {"ca_file": str(authority.path("ca.pem"))},
                "authorization": {"credentials": key_of("prometheus").text},
                "static_configs": [{"targets": [f"127.0.0.1:{server.http_port}"]}],
            },
        )


def kill_a_worker(server: RunningServer, times: int) -> None:
    """Kill the youngest again and again; another one goes on."""
    for _ in range(times):
        before = workers_of(server)
        os.kill(before[-1], signal.SIGKILL)
        server.wait_for(lambda before=before: bool(set(workers_of(server)) - set(before)), "another worker")


@pytest.mark.rest
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed")
def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    """All rules of the file; that of disks where one may be mounted."""
    models, disk = troubled_models(tmp_path), tmp_path / "disk"
    options = ("--allow-code", "--drain-lead-seconds", "15", "--audit-file", str(disk / "audit"))
    expected = set(re.findall(r"alert: (\w+)", RULES.read_text("utf-8"))) - {"HeadraceNotReady"}
    with (
        nearly_full(disk) as is_full,
        RunningServer(models, *options) as server,
        workers_in_trouble(tmp_path) as (workers, scraped),
    ):
        if not is_full:
            expected -= {"HeadraceDiskFills"}

        def ask(model: str, *values: float) -> Callable[[], object]:
            return lambda: server.post(f"/v1/models/{model}:predict", {"instances": list(values)})

        targets = [f"127.0.0.1:{server.http_port}", "127.0.0.1:1"]
        first = {"job_name": "headrace", "static_configs": [{"targets": targets}]}
        with scraping(tmp_path / "prometheus", first, scraped, rules=short_rules()) as prometheus:
            prometheus.wait_for_alerts(
                {"HeadraceCertificateExpires"}
            )  # so it has seen workers that nobody has killed
            (tmp_path / "away").touch()
            for child in children_of(server.process.pid):
                os.kill(child, signal.SIGKILL)
            write(models, "late", 2, waits_while(tmp_path / "warm", there=False))
            kill_a_worker(workers, 3)
            (tmp_path / "new keys").write_text("no keys")
            (tmp_path / "new keys").rename(tmp_path / "keys.toml")
            asking = [ask("late", 1.0), ask("raises", 1.0), ask("small", 1.0, 2.0), *[ask("slow", 1.0)] * 16]
            with going_on(*asking):
                prometheus.wait_for_alerts(expected - {"HeadraceCertificateExpires"})
            (tmp_path / "warm").touch()
            (tmp_path / "away").unlink()
            server.process.send_signal(signal.SIGTERM)
            prometheus.wait_for_alerts({"HeadraceNotReady"})
        server.wait_until_ended()
