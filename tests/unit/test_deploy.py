"""What the files of ``deploy/`` say together, and with headrace's settings; their checks can fail."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hcl2
import msgspec
import pytest
import yaml

from headrace.archive.filling.filler import _LAST_SECONDS
from headrace.cli.main import build_parser
from headrace.cli.settings import parse
from headrace.config import ModelConfig, ServerConfig

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
NOMAD = sorted(DEPLOY.glob("nomad/*.hcl"))
SPARE_SECONDS = 5.0
"""What a process needs beside its drain: a computation that runs is waited for, files are closed."""


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deployment", ROOT / "tools/deployment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["deployment"] = module
    spec.loader.exec_module(module)
    return module


def documents(name: str, kind: str) -> list[Any]:
    found = yaml.safe_load_all((DEPLOY / name).read_text("utf-8"))
    return [document for document in found if document["kind"] == kind]


def deployment() -> Any:
    (found,) = documents("kubernetes/deployment.yaml", "Deployment")
    return found["spec"]


def pod() -> Any:
    return deployment()["template"]["spec"]


def container() -> Any:
    (found,) = pod()["containers"]
    return found


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(ms|s|m)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"ms": 0.001, "s": 1, "m": 60}[unit]


def settings(named: dict[str, str]) -> ServerConfig:
    """What a server of these variables would have: as it reads them, so a wrong value raises."""
    own = {name.removeprefix("HEADRACE_SERVE_").lower(): value for name, value in named.items()}
    return msgspec.convert(own, ServerConfig, strict=False)


def nomad(file: Path) -> tuple[Any, Any]:
    """The fields of a job's only group, and of its only task."""
    options = hcl2.SerializationOptions(strip_string_quotes=True, explicit_blocks=False, with_comments=False)
    (job,) = hcl2.loads(file.read_text("utf-8"), serialization_options=options)["job"][0].values()
    (group,) = job["group"][0].values()
    (task,) = group["task"][0].values()
    return group, task


def options_of(task: Any) -> dict[str, Any]:
    """All settings of a task's command that are not empty, as it reads them in the image."""
    image = (DEPLOY / "docker/Dockerfile").read_text("utf-8")
    own = dict(re.findall(r"^ +(HEADRACE_\w+)=(\S+)", image, re.MULTILINE))
    words = task["config"][0]["args"]
    given = vars(parse(build_parser(), words, {**own, **task["env"][0]})).items()
    defaults = msgspec.structs.asdict(ServerConfig()) if "serve" in words else {}
    found = {**defaults, **{name: value for name, value in given if value is not None}}
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_variable_is_a_setting_of_the_server(file: Path) -> None:
    names = re.findall(r"HEADRACE_SERVE_([A-Z_]+)", file.read_text("utf-8"))
    assert {name.lower() for name in names} <= set(ServerConfig.__struct_fields__)


# ---- Stopping: each platform kills what has not ended by then ----


def test_kubernetes_waits_for_the_whole_drain() -> None:
    said = settings({one["name"]: one["value"] for one in container()["env"]})
    pause = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod()["terminationGracePeriodSeconds"] >= pause + said.drain_seconds + SPARE_SECONDS
    assert said.drain_lead_seconds <= said.drain_seconds / 2


@pytest.mark.parametrize("file", NOMAD, ids=lambda path: path.name)
def test_nomad_waits_for_all_that_a_stop_takes(file: Path) -> None:
    _, task = nomad(file)
    said = options_of(task)
    longest = said.get("drain_seconds", _LAST_SECONDS)
    assert seconds(task["kill_timeout"]) >= longest + SPARE_SECONDS
    assert task["kill_signal"] == "SIGTERM"


def test_compose_and_systemd_wait_for_the_whole_drain_of_a_server_with_defaults() -> None:
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text("utf-8"))
    unit = (DEPLOY / "systemd/headrace.service").read_text("utf-8")
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    longest = ServerConfig().drain_seconds + SPARE_SECONDS
    assert seconds(compose["services"]["headrace"]["stop_grace_period"]) >= longest
    assert float(stop) >= longest


def test_a_balancer_sees_that_a_server_stops_before_that_takes_no_more() -> None:
    lead = ServerConfig().drain_lead_seconds
    text = (DEPLOY / "haproxy/haproxy.cfg").read_text("utf-8")
    (found,) = re.findall(r"default-server check inter (\w+) fastinter (\w+) downinter \w+ fall (\d) ", text)
    assert seconds(found[0]) + (int(found[2]) - 1) * seconds(found[1]) < lead
    envoy = yaml.safe_load((DEPLOY / "envoy/envoy.yaml").read_text("utf-8"))
    checks = [one for cluster in envoy["static_resources"]["clusters"] for one in cluster["health_checks"]]
    assert len(checks) == 2
    assert all(seconds(check["interval"]) < lead for check in checks)


# ---- Nomad ----


@pytest.mark.parametrize("file", NOMAD, ids=lambda path: path.name)
def test_nomad_sets_what_the_command_reads_and_reaches_its_ports(file: Path) -> None:
    group, task = nomad(file)
    said = options_of(task)
    assert task["env"][0].keys() <= set(said["origins"].values())
    ports = {name: port["to"] for one in group["network"][0]["port"] for name, port in one.items()}
    opened = {name.removesuffix("_port"): port for name, port in said.items() if name.endswith("_port")}
    assert ports == opened
    assert said.get("host", said.get("metrics_host")) == "0.0.0.0"
    assert set(task["config"][0]["ports"]) == {one["port"] for one in group["service"]} == ports.keys()


# ---- Kubernetes ----


def test_probes_ask_what_they_are_for() -> None:
    paths = {name: container()[name]["httpGet"]["path"] for name in container() if name.endswith("Probe")}
    assert paths == {
        "startupProbe": "/v2/health/live",
        "readinessProbe": "/v2/health/ready",
        "livenessProbe": "/v2/health/live",
    }
    ports = {one["name"]: one["containerPort"] for one in container()["ports"]}
    assert ports == {"http": ServerConfig().http_port, "grpc": ServerConfig().grpc_port}
    # A restart must not come for a computation that is long and lawful.
    liveness = container()["livenessProbe"]
    patience = liveness["periodSeconds"] * liveness["failureThreshold"]
    assert patience > 2 * ModelConfig().batching.max_batch_seconds + SPARE_SECONDS


def test_services_and_who_watches_find_the_pods() -> None:
    labels = deployment()["template"]["metadata"]["labels"].items()
    ports = {one["name"] for one in container()["ports"]}
    services = documents("kubernetes/services.yaml", "Service")
    assert [one["spec"].get("clusterIP") for one in services] == [None, "None"]
    for service in services:
        assert service["spec"]["selector"].items() <= labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    (monitor,) = documents("kubernetes/monitoring.yaml", "ServiceMonitor")
    watched = [
        one
        for one in services
        if monitor["spec"]["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
    ]
    assert len(watched) == 1, "each pod is scraped once"
    assert {one["port"] for one in monitor["spec"]["endpoints"]} <= {
        port["name"] for port in watched[0]["spec"]["ports"]
    }
    (policy,) = documents("kubernetes/network.yaml", "NetworkPolicy")
    (budget,) = documents("kubernetes/scaling.yaml", "PodDisruptionBudget")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels


def test_the_others_can_answer_when_one_pod_fails() -> None:
    (scaler,) = documents("kubernetes/scaling.yaml", "HorizontalPodAutoscaler")
    least = scaler["spec"]["minReplicas"]
    target = scaler["spec"]["metrics"][0]["pods"]["target"]["averageValue"]
    assert int(target.removesuffix("m")) / 1000 < (least - 1) / least
    assert (
        scaler["spec"]["scaleTargetRef"]["name"]
        == documents("kubernetes/deployment.yaml", "Deployment")[0]["metadata"]["name"]
    )


def test_keda_scales_as_the_autoscaler_of_kubernetes_does() -> None:
    """Who changes from one to the other gets the same bounds, the same target and the same pace."""
    (keda,) = documents("keda/scaledobject.yaml", "ScaledObject")
    (scaler,) = documents("kubernetes/scaling.yaml", "HorizontalPodAutoscaler")
    spec, own = keda["spec"], scaler["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (own["minReplicas"], own["maxReplicas"])
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == own["behavior"]
    assert spec["scaleTargetRef"]["name"] == own["scaleTargetRef"]["name"]
    (trigger,) = spec["triggers"]
    milli = own["metrics"][0]["pods"]["target"]["averageValue"].removesuffix("m")
    assert float(trigger["metadata"]["threshold"]) == int(milli) / 1000
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA reads texts only"


def test_autoscalers_ask_for_a_metric_that_there_is() -> None:
    (keda,) = documents("keda/scaledobject.yaml", "ScaledObject")
    (scaler,) = documents("kubernetes/scaling.yaml", "HorizontalPodAutoscaler")
    (rule,) = yaml.safe_load((DEPLOY / "prometheus/adapter_rules.yaml").read_text("utf-8"))["rules"]
    name = scaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert name == rule["name"]["as"]
    assert re.fullmatch(rule["name"]["matches"], name)
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert f"({name}{{" in keda["spec"]["triggers"][0]["metadata"]["query"]
    assert f"| `{name}` | gauge, " in (ROOT / "docs/metrics.md").read_text("utf-8")


def test_the_limit_of_processors_is_whole_and_all_of_it_requested() -> None:
    """The number of threads is that of the limit; half a processor is one that is taken away at times."""
    found = container()["resources"]
    assert found["requests"] == found["limits"]
    assert int(found["limits"]["cpu"]) >= 1


def test_kustomize_takes_all_files() -> None:
    (found,) = documents("kubernetes/kustomization.yaml", "Kustomization")
    files = {path.name for path in DEPLOY.glob("kubernetes/*.yaml")} - {"kustomization.yaml"}
    assert set(found["resources"]) == files


# ---- The image and compose ----


def test_an_image_is_built_from_what_docker_is_given() -> None:
    given = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()}
    copied = re.findall(
        r"^COPY (?!--)(.*) \S+$", (DEPLOY / "docker/Dockerfile").read_text("utf-8"), re.MULTILINE
    )
    assert copied
    assert {name for line in copied for name in line.split()} <= given


def mounted() -> Iterator[Path]:
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text("utf-8"))
    for service in compose["services"].values():
        for volume in service["volumes"]:
            if isinstance(volume, dict) and not volume["source"].startswith("$"):
                yield (DEPLOY / "compose" / volume["source"]).resolve()


@pytest.mark.parametrize("path", [*mounted()], ids=lambda path: path.name)
def test_compose_mounts_what_is_there(path: Path) -> None:
    assert path.exists()


# ---- That what `make check` runs can fail ----


def test_continuous_integration_misses_no_tool(checker: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "export DEPLOY_TOOLS=required\n" in (ROOT / ".ci/run").read_text("utf-8")
    monkeypatch.setattr(checker, "_SYSTEM_PATH", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("DEPLOY_TOOLS", raising=False)
    assert list(checker.missing_tools()) == []
    monkeypatch.setenv("DEPLOY_TOOLS", "required")
    said = [f"there is no {name} here" for name in ("haproxy", "nginx", "promtool", "systemd-analyze")]
    assert list(checker.missing_tools(has_systemd=False)) == said[:3]
    assert list(checker.missing_tools(has_systemd=True)) == said


def test_a_field_that_kubernetes_does_not_know_is_found(checker: ModuleType) -> None:
    (document,) = documents("kubernetes/deployment.yaml", "Deployment")
    assert list(checker.kubernetes_problems(document)) == []
    del document["spec"]["selector"]
    (said,) = checker.kubernetes_problems(document)
    assert "selector" in said
    (monitor,) = documents("kubernetes/monitoring.yaml", "ServiceMonitor")
    monitor["spec"]["endpoints"][0]["often"] = "5s"
    (said,) = checker.kubernetes_problems(monitor)
    assert "often" in said


def test_a_container_that_knative_would_refuse_is_found(checker: ModuleType) -> None:
    (document,) = documents("knative/service.yaml", "Service")
    assert list(checker.kubernetes_problems(document)) == []
    document["spec"]["template"]["spec"]["containers"][0]["port"] = 8501
    assert len(list(checker.kubernetes_problems(document))) == 1


def test_a_field_that_keda_or_the_adapter_does_not_know_is_found(checker: ModuleType) -> None:
    (document,) = documents("keda/scaledobject.yaml", "ScaledObject")
    assert list(checker.keda_problems(document)) == []
    document["spec"]["triggers"][0]["metadata"]["limit"] = "0.6"
    document["spec"]["maxReplicas"] = 12
    document["spec"]["fallback"]["behavior"] = "stay"
    said = list(checker.keda_problems(document))
    assert len(said) == 3
    assert all(any(name in one for one in said) for name in ("limit", "maxReplicas", "behavior"))
    rules = yaml.safe_load((DEPLOY / "prometheus/adapter_rules.yaml").read_text("utf-8"))
    assert list(checker.adapter_problems(rules)) == []
    rules["rules"][0]["query"] = "x"
    (one,) = checker.adapter_problems(rules)
    assert "query" in one


@pytest.mark.parametrize("file", NOMAD, ids=lambda path: path.name)
def test_a_field_that_nomad_does_not_know_is_found(checker: ModuleType, file: Path) -> None:
    text = file.read_text("utf-8")
    assert list(checker.nomad_problems(text)) == []
    wrong = text.replace("kill_timeout", "stop_timeout").replace("memory = 2048", "ram = 2048")
    assert list(checker.nomad_problems(wrong)) == [
        "job.group.task: no field stop_timeout is known",
        "job.group.task.resources: no field ram is known",
    ]
    (said,) = checker.nomad_problems("job {")
    assert said.startswith("it is no HCL")


def test_a_dashboard_that_is_wrong_is_told(checker: ModuleType) -> None:
    board = json.loads((ROOT / "deploy/grafana/headrace.json").read_text("utf-8"))
    assert list(checker.dashboard_problems(board)) == []
    del board["uid"], board["panels"][0]["gridPos"]
    board["panels"][1]["targets"][0]["expr"] = "sum(headrace_redy)"
    board["panels"][2]["targets"] = []
    said = list(checker.dashboard_problems(board))
    assert said[:2] == ["uid is missing", f"panel {board['panels'][0]['title']}: gridPos is missing"]
    assert said[2] == f"panel {board['panels'][2]['title']}: a query is missing"
    assert said[3].startswith("headrace_redy in 'sum(headrace_redy)' is no metric of headrace")
    assert len(said) == 4


@pytest.mark.skipif(shutil.which("promtool") is None, reason="only promtool parses queries")
def test_a_query_that_does_not_parse_is_told(checker: ModuleType) -> None:
    board = json.loads((ROOT / "deploy/grafana/headrace.json").read_text("utf-8"))
    board["panels"][1]["targets"][0]["expr"] = "sum(headrace_ready"
    (said,) = checker.dashboard_problems(board)
    assert "could not parse expression" in said


@pytest.mark.skipif(shutil.which("promtool") is None, reason="only promtool knows Prometheus's files")
def test_a_file_of_rules_that_is_none_is_told(checker: ModuleType, tmp_path: Path) -> None:
    """The tests of rules lie beside them, where compose.yaml mounts both."""
    directory = Path(shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus"))
    assert list(checker.prometheus_problems(directory)) == []
    config = directory / "prometheus.yml"
    config.write_text(config.read_text("utf-8").replace("alerts.yml", "alerts*.yml"), "utf-8")
    (said,) = checker.prometheus_problems(directory)
    assert "alerts_test.yml" in said


def test_what_grafana_starts_with_is_checked(checker: ModuleType, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(DEPLOY / "grafana", tmp_path / "grafana"))
    assert list(checker.provisioning_problems(directory)) == []
    source = directory / "provisioning/datasources/prometheus.yml"
    source.write_text(source.read_text("utf-8").replace("http://prometheus:9090", "http://metrics:9090"))
    provider = directory / "provisioning/dashboards/headrace.yml"
    text = provider.read_text("utf-8")
    provider.write_text(text.replace("path: /etc/grafana/dashboards", "paths: /boards"))
    assert list(checker.provisioning_problems(directory)) == [
        "a data source: http://metrics:9090 is no Prometheus of compose.yaml",
        "a provider: {'paths': '/boards'} is no path that compose.yaml mounts",
    ]
