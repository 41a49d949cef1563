"""Checks the files of ``deploy/`` by the tools that know their kinds: ``python tools/deployment.py``.

Dockerfile: hadolint. Kubernetes: its schemas. KEDA: the schema of its ScaledObject. Compose: its schema.
Envoy: Envoy itself. Nomad: HCL, and the names of its fields. prometheus-adapter: the names of its fields.
systemd, HAProxy, NGINX, Prometheus: their own verifiers. One that is not installed is reported; with
``DEPLOY_TOOLS=required``, as in ``.ci/run``, that is an error (of systemd's only where systemd runs).
Grafana: what it starts with, its dashboard's fields and metrics, and by Prometheus' verifier its queries.
What the files say together (names, ports, times) is checked by ``tests/unit/test_deploy.py``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hcl2
import jsonschema
import kubernetes_validate
import yaml

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
KEDA_SCHEMA = Path(__file__).with_name("schemas") / "keda_scaledobject.json"
METRICS_PAGE = DEPLOY.parent / "docs" / "metrics.md"
"""Has all metrics: tests/unit/test_docs.py."""
_BOARD = {"title", "uid", "schemaVersion", "panels", "templating", "time"}
_PANEL = {"id", "type", "title", "gridPos"}
"""What Grafana needs of a dashboard, and of each of its panels."""
_SOURCE = {"name", "uid", "type", "url", "isDefault", "access"}
_PROVIDER = {"name", "type", "options", "folder"}
"""What we use of a data source, and of a provider of dashboards."""
_TOOL_SECONDS = 60
_SYSTEM_PATH = "/usr/sbin:/usr/local/sbin"
"""Where a command may be that only root has in its path."""
_OWN_SCHEMA = {"ServiceMonitor", "Kustomization"}
"""Kinds that Kubernetes itself does not know; their fields are checked by ``_FIELDS``."""

_FIELDS: dict[str, set[str]] = {
    "ServiceMonitor.spec": {"selector", "endpoints", "namespaceSelector", "jobLabel"},
    "ServiceMonitor.spec.endpoints": {"port", "path", "interval", "scrapeTimeout", "scheme"},
    "Kustomization": {"apiVersion", "kind", "resources", "images"},
    "Service.spec.template.spec": {"timeoutSeconds", "containerConcurrency", "containers", "volumes"},
    # Of KEDA's scaler for Prometheus, which reads them as text: pkg/scalers/prometheus_scaler.go.
    "ScaledObject.spec.triggers.metadata": {
        "serverAddress", "query", "queryParameters", "threshold", "activationThreshold", "namespace",
        "customHeaders", "ignoreNullValues", "unsafeSsl", "timeout", "authModes",
    },
    # Of prometheus-adapter: pkg/config/config.go.
    "the adapter's rules": {"rules", "resourceRules", "externalRules"},
    "the adapter's rules.rules": {
        "seriesQuery", "seriesFilters", "resources", "name", "metricsQuery",
    },
    "the adapter's rules.rules.resources": {"template", "overrides", "namespaced"},
    "the adapter's rules.rules.name": {"matches", "as"},
}  # fmt: skip
_NOMAD: dict[str, set[str]] = {
    "": {"job"},
    "job": {"datacenters", "type", "update", "group"},
    "job.update": {"max_parallel", "health_check", "min_healthy_time", "healthy_deadline", "auto_revert"},
    "job.group": {"count", "shutdown_delay", "constraint", "network", "volume", "service", "task"},
    "job.group.constraint": {"attribute", "operator", "value"},
    "job.group.network": {"port", "mode"},
    "job.group.network.port": {"to", "static"},
    "job.group.volume": {"type", "source", "read_only"},
    "job.group.service": {"name", "port", "check", "provider", "tags"},
    "job.group.service.check": {"name", "type", "path", "interval", "timeout", "check_restart"},
    "job.group.service.check.check_restart": {"limit", "grace"},
    "job.group.task": {
        "driver", "kill_signal", "kill_timeout", "config", "env", "volume_mount", "resources",
    },
    "job.group.task.config": {
        "image", "args", "ports", "readonly_rootfs", "cap_drop", "security_opt", "healthchecks",
    },
    "job.group.task.config.healthchecks": {"disable"},
    "job.group.task.volume_mount": {"volume", "destination", "read_only"},
    "job.group.task.resources": {"cores", "cpu", "memory"},
}  # fmt: skip
"""Which fields each block of a job may have, by HashiCorp's job specification; of those that we use."""
_NAMED = {"job", "job.group", "job.group.network.port", "job.group.volume", "job.group.task"}
"""Blocks with a name behind them."""


def problems() -> Iterator[str]:
    """What is wrong with the files; nothing if all is well."""
    yield from missing_tools()
    bin_directory = Path(sys.executable).parent
    yield from _by_tool("Dockerfile", [bin_directory / "hadolint", DEPLOY / "docker/Dockerfile"])
    compose = [bin_directory / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    yield from _by_tool("compose.yaml", [*compose, DEPLOY / "compose/compose.yaml"])
    envoy = [bin_directory / "envoy", "--mode", "validate", "--log-level", "error", "-c"]
    yield from _by_tool("envoy.yaml", [*envoy, DEPLOY / "envoy/envoy.yaml"])
    for file in sorted([*DEPLOY.glob("kubernetes/*.yaml"), *DEPLOY.glob("knative/*.yaml")]):
        for document in yaml.safe_load_all(file.read_text("utf-8")):
            yield from (f"{file.name}: {said}" for said in kubernetes_problems(document))
    keda = yaml.safe_load((DEPLOY / "keda/scaledobject.yaml").read_text("utf-8"))
    yield from (f"scaledobject.yaml: {said}" for said in keda_problems(keda))
    rules = yaml.safe_load((DEPLOY / "prometheus/adapter_rules.yaml").read_text("utf-8"))
    yield from (f"adapter_rules.yaml: {said}" for said in adapter_problems(rules))
    for file in sorted(DEPLOY.glob("nomad/*.hcl")):
        yield from (f"{file.name}: {said}" for said in nomad_problems(file.read_text("utf-8")))
    yield from _systemd_problems()
    yield from _haproxy_problems()
    yield from _nginx_problems()
    yield from prometheus_problems()
    yield from provisioning_problems()
    board = json.loads((DEPLOY / "grafana/headrace.json").read_text("utf-8"))
    yield from (f"the dashboard: {said}" for said in dashboard_problems(board))


def dashboard_problems(board: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a dashboard of Grafana: fields, metrics, queries.

    Args:
        board: Its fields.
    """
    yield from (f"{field} is missing" for field in sorted(_BOARD - board.keys()))
    known = set(re.findall(r"headrace_\w+", METRICS_PAGE.read_text("utf-8")))
    known |= {f"{name}{part}" for name in known for part in ("_bucket", "_sum", "_count")}
    queries = [str(one.get("query", "")) for one in board.get("templating", {}).get("list", [])]
    expressions = []
    for panel in _panels(board.get("panels", [])):
        name = f"panel {panel.get('title', panel.get('id'))}"
        yield from (f"{name}: {field} is missing" for field in sorted(_PANEL - panel.keys()))
        targets = panel.get("targets", [])
        if panel.get("type") != "row" and not all(target.get("expr") for target in targets or [{}]):
            yield f"{name}: a query is missing"
        expressions += [str(target["expr"]) for target in targets if target.get("expr")]
    for text in (*queries, *expressions):
        for metric in sorted(set(re.findall(r"\bheadrace_\w+", text)) - known):
            yield f"{metric} in {text!r} is no metric of headrace: docs/metrics.md"
    if command := _installed("promtool", "grafana"):
        yield from _query_problems(command, expressions)


def _panels(panels: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for panel in panels:  # a row that is folded holds its own
        yield panel
        yield from _panels(panel.get("panels", []))


def _query_problems(command: Path, expressions: Iterable[str]) -> Iterator[str]:
    """What Prometheus cannot parse, with times in place of Grafana's variables of times."""
    texts = [re.sub(r"\$(__\w+|\{__\w+\})", "5m", one) for one in expressions]
    rules = [{"record": f"query_{number}", "expr": text} for number, text in enumerate(texts, 1)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.yml"
        file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}), "utf-8")
        yield from _by_tool("queries", [command, "check", "rules", file])


def kubernetes_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one document of Kubernetes, of Knative, or of the Prometheus operator.

    Args:
        document: Its fields.
    """
    kind = str(document.get("kind"))
    if kind in _OWN_SCHEMA:
        yield from _unknown(kind, document)
        for field in ("spec", "spec.endpoints"):
            if f"{kind}.{field}" in _FIELDS:
                yield from _unknown(f"{kind}.{field}", _at(document, field))
        return
    if str(document.get("apiVersion")).startswith("serving.knative.dev/"):
        spec = _at(document, "spec.template.spec")
        yield from _unknown("Service.spec.template.spec", spec)
        pod = {name: value for name, value in spec.items() if name in ("containers", "volumes")}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": document["metadata"], "spec": pod}
    try:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        yield f"{kind}: {getattr(error, 'message', error)}"


def keda_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a ScaledObject of KEDA whose trigger is Prometheus.

    Args:
        document: Its fields.
    """
    schema = json.loads(KEDA_SCHEMA.read_text("utf-8"))
    for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
        yield f"ScaledObject: {error.json_path}: {error.message}"
    for trigger in document.get("spec", {}).get("triggers", []):
        yield from _unknown("ScaledObject.spec.triggers.metadata", trigger.get("metadata", {}))


def adapter_problems(rules: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with rules of prometheus-adapter.

    Args:
        rules: The fields of its configuration.
    """
    where = "the adapter's rules"
    yield from _unknown(where, rules)
    for rule in rules.get("rules", []):
        yield from _unknown(f"{where}.rules", rule)
        for field in ("resources", "name"):
            yield from _unknown(f"{where}.rules.{field}", rule.get(field, {}))


def _at(document: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    found: Any = document
    for name in path.split("."):
        found = found[name]
        found = found[0] if isinstance(found, list) else found
    return dict(found)


def _unknown(where: str, fields: Mapping[str, Any]) -> Iterator[str]:
    if where in _FIELDS:
        yield from (f"{where}: no field {name} is known" for name in sorted(set(fields) - _FIELDS[where]))


def nomad_problems(text: str) -> Iterator[str]:
    """What is wrong with a job of Nomad.

    Args:
        text: The job, in HCL.
    """
    try:
        found = hcl2.loads(text)
    except Exception as error:  # noqa: BLE001  # The parser's own kinds of errors are no part of its interface.
        yield f"it is no HCL: {str(error).splitlines()[0]}"
        return
    yield from _nomad_block("", found)


def _nomad_block(where: str, fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if name.startswith("__"):
            continue  # the parser's own words
        if name not in _NOMAD[where]:
            yield f"{where or 'the file'}: no field {name} is known"
            continue
        place = f"{where}.{name}".lstrip(".")
        blocks = [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
        for block in blocks:
            inner = [block]
            if place in _NAMED:
                inner = [one for label, one in block.items() if not label.startswith("__")]
            if place in _NOMAD:
                for one in inner:
                    yield from _nomad_block(place, one)


def missing_tools(*, has_systemd: bool = Path("/run/systemd/system").exists()) -> Iterator[str]:
    """Which tools of Debian's packages are not here, where all of them are required.

    Args:
        has_systemd: Whether systemd runs on this machine.
    """
    if os.environ.get("DEPLOY_TOOLS") != "required":
        return
    for command in ("haproxy", "nginx", "promtool", *(["systemd-analyze"] if has_systemd else [])):
        if _found(command) is None:
            yield f"there is no {command} here"


def _found(command: str) -> str | None:
    return shutil.which(command) or shutil.which(command, path=_SYSTEM_PATH)


def _installed(command: str, folder: str) -> Path | None:
    """Where a command of Debian's packages is; where it is not, that is said."""
    found = _found(command)
    if found is None:
        print(f"deploy/{folder} is not checked: there is no {command} here")
    return None if found is None else Path(found)


def _haproxy_problems() -> Iterator[str]:
    if command := _installed("haproxy", "haproxy"):
        yield from _by_tool("haproxy.cfg", [command, "-c", "-q", "-f", DEPLOY / "haproxy/haproxy.cfg"])


def _nginx_problems() -> Iterator[str]:
    """NGINX makes its directories and its file of the process's number, also when it only checks."""
    command = _installed("nginx", "nginx")
    if command is None:
        return
    if os.geteuid() != 0:
        print("deploy/nginx is not checked: nginx -t needs root")
        return
    with tempfile.TemporaryDirectory() as folder:
        copy, text = Path(folder, "nginx.conf"), (DEPLOY / "nginx/nginx.conf").read_text("utf-8")
        copy.write_text(text.replace("pid /run/nginx.pid;", f"pid {folder}/nginx.pid;"))
        yield from _by_tool("nginx.conf", [command, "-t", "-q", "-e", "stderr", "-p", folder, "-c", copy])


def prometheus_problems(directory: Path = DEPLOY / "prometheus") -> Iterator[str]:
    """What is wrong with Prometheus's files, as they are where compose.yaml mounts them.

    Args:
        directory: What it mounts.
    """
    command = _installed("promtool", "prometheus")
    if command is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        mounted = Path(shutil.copytree(directory, Path(folder) / "prometheus"))
        config = mounted / "prometheus.yml"
        text = config.read_text("utf-8")
        # Files that are not there are no error to promtool, where they are named by a pattern.
        config.write_text(text.replace("/etc/prometheus/", f"{mounted}/"), "utf-8")
        yield from _by_tool("prometheus.yml", [command, "check", "config", config])


def provisioning_problems(directory: Path = DEPLOY / "grafana") -> Iterator[str]:
    """What is wrong with what Grafana is given when it starts: its data source, and where its dashboards are.

    Args:
        directory: Has its dashboards, and ``provisioning``.
    """
    sources = _items(directory / "provisioning/datasources", "datasources")
    providers = _items(directory / "provisioning/dashboards", "providers")
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text("utf-8"))["services"]
    mounted = {Path(one["target"]) for one in compose["grafana"]["volumes"] if isinstance(one, Mapping)}
    for source in sources:
        yield from (f"a data source: no field {name} is known" for name in sorted(set(source) - _SOURCE))
        server = urlsplit(str(source.get("url")))
        if server.hostname not in compose or server.port != 9090:
            yield f"a data source: {source.get('url')} is no Prometheus of compose.yaml"
    for provider in providers:
        yield from (f"a provider: no field {name} is known" for name in sorted(set(provider) - _PROVIDER))
        if Path(provider.get("options", {}).get("path", "")) not in mounted:
            yield f"a provider: {provider.get('options')} is no path that compose.yaml mounts"


def _items(directory: Path, kind: str) -> list[Mapping[str, Any]]:
    files = [yaml.safe_load(file.read_text("utf-8")) for file in sorted(directory.iterdir())]
    return [item for file in files for item in file[kind]]


def _systemd_problems() -> Iterator[str]:
    command = _installed("systemd-analyze", "systemd")
    if command is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for unit in sorted(DEPLOY.glob("systemd/*")):
            copies.append(Path(folder) / unit.name)
            # The command of the unit is not installed where it is checked; any other will do.
            lines = unit.read_text("utf-8").splitlines()
            copies[-1].write_text(
                "\n".join("ExecStart=/bin/true" if _starts(line) else line for line in lines) + "\n"
            )
        for copy in copies:
            yield from _by_tool(copy.name, [command, "verify", "--man=no", copy], silent=True)


def _starts(line: str) -> bool:
    return line.startswith("ExecStart=")


def _by_tool(what: str, command: list[Path | str], *, silent: bool = False) -> Iterator[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    if done.returncode or (silent and done.stderr.strip()):
        yield f"{what}: {(done.stdout + done.stderr).strip()}"


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    found = list(problems())
    for said in found:
        print(said)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
