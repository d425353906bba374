"""The files of deploy/ have the form that their readers want, and fit the commands and each other.

What reads them is run where a package or this machine has it; no container is started.
"""

from __future__ import annotations

import importlib.resources
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import check_jsonschema
import deploy_files as files
import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml
from command_lines import parsed

from cloud_verifier.engine import Engine
from cloud_verifier.metrics import PrometheusObserver
from cloud_verifier.table_target import TableTarget
from draftwire import errors
from draftwire.addresses import stays_here
from draftwire.testing.demo import DEMO_MODEL_FILE, DEMO_MODEL_PACKAGE
from draftwire.testing.table import TableModel

COMMAND_LINES = list(files.command_lines())
ALERTS = files.documents(files.DEPLOY / "prometheus/alerts.yml")[0]["groups"][0]["rules"]
ENDS = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
HARDENED = {"NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictNamespaces", "LockPersonality"}


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.mark.parametrize(
    ("place", "words"), COMMAND_LINES, ids=[place for place, _ in COMMAND_LINES]
)
def test_every_command_line_is_one_that_the_command_takes(place: str, words: list[str]) -> None:
    assert parsed(words).command, place


@pytest.mark.parametrize("words", [words for _, words in COMMAND_LINES if words[1] == "serve"])
def test_a_verifier_that_others_can_reach_has_tls_or_says_that_it_has_not(words: list[str]) -> None:
    asked = parsed(words)
    assert not stays_here(asked.listen)
    assert asked.tls_cert or asked.insecure
    assert asked.insecure or stays_here(asked.metrics)


# Compose


def test_the_compose_file_is_of_the_compose_specification() -> None:
    vendored = importlib.resources.files(check_jsonschema) / "builtin_schemas/vendor"
    schema = json.loads((vendored / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.validate(files.compose(), schema)


def test_containers_are_not_root_can_write_little_and_publish_to_this_machine_only() -> None:
    for service in files.compose()["services"].values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    for path in files.DEPLOY.glob("*.Dockerfile"):
        assert re.search(r"^USER 10001$", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_images_hold_the_demo_model_where_it_is_looked_for_and_bytecode() -> None:
    for path in files.DEPLOY.glob("*.Dockerfile"):
        text = path.read_text(encoding="utf-8")
        assert f"ARG DEMO_MODEL={DEMO_MODEL_PACKAGE}\n" in text
        assert not re.search(r"python3\.\d+/", text)
        assert "--no-compile" not in text  # nothing is written later: each start would compile
    pod = files.container(files.verifier_deployments()[0])["args"]
    for words in (files.compose()["services"]["verifier-cpu"]["command"], pod):
        assert files.option(words, "model") == f"/models/{DEMO_MODEL_FILE}"


@pytest.mark.parametrize("name", ["verifier-cpu", "verifier-cuda"])
def test_a_container_has_time_to_finish_and_answers_where_it_is_asked(name: str) -> None:
    service = files.compose()["services"][name]
    asked = parsed([files.entrypoint(service), *service["command"]])
    assert seconds(service["stop_grace_period"]) > asked.grace
    assert parsed(service["healthcheck"]["test"][1:]).address.endswith(asked.listen[-5:])
    assert service["networks"]["default"]["aliases"] == ["verifier"]
    [scraped] = files.documents(files.DEPLOY / "prometheus/compose.yml")[0]["scrape_configs"]
    assert scraped["static_configs"][0]["targets"] == [f"verifier{asked.metrics[-5:]}"]


def test_what_compose_mounts_is_there_and_where_its_reader_looks() -> None:
    services = files.compose()["services"]
    mounts = {
        source: target
        for service in services.values()
        for source, target, *_ in (mount.split(":") for mount in service.get("volumes", ()))
    }
    assert all((files.ROOT / source).exists() for source in mounts if source.startswith("."))
    provisioning = files.DEPLOY / "grafana/provisioning"
    [provider] = files.documents(provisioning / "dashboards/draftwire.yml")[0]["providers"]
    dashboard = mounts["./deploy/grafana/draftwire.json"]
    assert Path(dashboard).parent == Path(provider["options"]["path"])
    environment = services["grafana"]["environment"]
    assert environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboard
    [source] = files.documents(provisioning / "datasources/prometheus.yml")[0]["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services


# Kubernetes


@pytest.mark.parametrize("path", files.manifests(), ids=lambda path: path.name)
def test_manifests_are_of_the_kubernetes_api(path: Path) -> None:
    for document in files.documents(path):
        kubernetes_validate.validate(document, "1.37", strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders overlays")
def test_the_overlay_for_gpus_asks_for_one_and_keeps_all_else() -> None:
    command = ["kubectl", "kustomize", str(files.KUBERNETES / "cuda")]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    objects = list(yaml.safe_load_all(rendered))
    for one in objects:
        kubernetes_validate.validate(one, "1.37", strict=True)
    [verifier] = [one for one in objects if one["kind"] == "Deployment"]
    runs = files.container(verifier)
    assert runs["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert runs["readinessProbe"]
    assert runs["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.parametrize("deployment", files.verifier_deployments(), ids=["cpu", "cuda"])
def test_a_pod_has_time_to_leave_and_to_finish(deployment: Any) -> None:
    base = files.verifier_deployments()[0]
    left = float(files.container(base)["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = parsed(["draftwire-verifier", *files.container(deployment)["args"]]).grace
    allowed = base["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert left + grace + 5 <= allowed


def test_probes_ask_the_pod_itself_by_the_name_of_its_certificate() -> None:
    pod = files.verifier_deployments()[0]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [alias] = pod["hostAliases"]
    listen = parsed(["draftwire-verifier", *container["args"]]).listen
    for probe in files.PROBES:
        asked = parsed(container[probe]["exec"]["command"])
        assert asked.address == f"{alias['hostnames'][0]}:{listen.rpartition(':')[2]}"
        assert container[probe]["timeoutSeconds"] > asked.timeout
    assert alias["ip"] == "127.0.0.1"


@pytest.mark.parametrize("deployment", files.verifier_deployments(), ids=["cpu", "cuda"])
def test_files_that_a_pod_is_told_of_are_mounted(deployment: Any) -> None:
    pod = files.verifier_deployments()[0]["spec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    secrets = {volume["name"] for volume in pod["volumes"] if "secret" in volume}
    asked = parsed(["draftwire-verifier", *files.container(deployment)["args"]])
    for path in (asked.tls_cert, asked.tls_key, asked.keys):
        assert mounts[str(Path(path).parent)] in secrets


def test_services_and_budgets_select_the_pods() -> None:
    [deployment, *_] = files.verifier_deployments()
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    [service] = files.documents(files.KUBERNETES / "base/service.yaml")
    [budget] = files.documents(files.KUBERNETES / "base/disruption-budget.yaml")
    [policy] = files.documents(files.KUBERNETES / "base/network-policy.yaml")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in files.container(deployment)["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    project = tomllib.loads((files.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert files.container(deployment)["image"] == f"draftwire-verifier:{project['version']}"


# systemd


@pytest.mark.parametrize("name", files.unit_names())
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_units_are_of_systemd(name: str, tmp_path: Path) -> None:
    text = (files.DEPLOY / "systemd" / name).read_text(encoding="utf-8")
    copy = tmp_path / name
    copy.write_text(re.sub(r"/opt/draftwire/bin/\S+", "/bin/true", text), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    checked = subprocess.run(command, check=True, capture_output=True, text=True)
    assert checked.stderr == ""


@pytest.mark.parametrize("name", files.unit_names())
def test_units_run_as_their_own_user_with_little_leave(name: str) -> None:
    settings = files.unit(name)
    assert settings["User"] == ["draftwire"]
    assert settings["ProtectSystem"] == ["strict"]
    assert settings["CapabilityBoundingSet"] == [""]
    assert all(settings[key] == ["yes"] for key in HARDENED)


def test_the_verifier_s_unit_waits_for_what_is_in_flight() -> None:
    asked = parsed(files.unit_command("draftwire-verifier.service"))
    [wait] = files.unit("draftwire-verifier.service")["TimeoutStopSec"]
    assert seconds(wait) > asked.grace


# Prometheus and Grafana


def test_alerts_and_panels_ask_for_metrics_that_there_are() -> None:
    observer = PrometheusObserver()
    observer.watch(Engine(TableTarget(TableModel(vocabulary_size=50)), observer=observer))
    known = {"up"} | {
        family.name + end for family in observer.collect() for end in ENDS[family.type]
    }
    panels = (panel.get("targets", ()) for panel in files.dashboard()["panels"])
    asked = [rule["expr"] for rule in ALERTS] + [one["expr"] for each in panels for one in each]
    assert len(asked) > 40
    for expression in asked:
        promql_parser.parse(expression.replace("$__rate_interval", "5m"))
        names = re.findall(r"draftwire:\w+", expression)
        assert names or "up{" in expression
        assert set(names) <= known


def test_alerts_name_codes_that_there_are() -> None:
    codes = {one.code for one in vars(errors).values() if hasattr(one, "code")}
    named = {code for rule in ALERTS for code in re.findall(r'code="(\w+)"', rule["expr"])}
    assert named == {"INTERNAL", "SERVER_FULL"}
    assert named <= codes
