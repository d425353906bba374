"""The files of deploy/ as data, and every command line in them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
ENTRYPOINTS = {"verifier": "draftwire-verifier", "edge": "draftwire"}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@cache
def compose() -> Any:
    """docker-compose.yml, its variables as they are where nobody sets them."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))


@cache
def documents(path: Path) -> tuple[Any, ...]:
    """The documents of a YAML file."""
    return tuple(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def manifests() -> list[Path]:
    """The files of Kubernetes objects that are whole, which patches are not."""
    files = [*KUBERNETES.glob("base/*.yaml"), KUBERNETES / "cuda/models.yaml"]
    return sorted(path for path in files if path.name != "kustomization.yaml")


def verifier_deployments() -> list[Any]:
    """The deployment of verifiers, and what is laid over it for GPUs."""
    return [documents(KUBERNETES / place / "verifier.yaml")[0] for place in ("base", "cuda")]


def container(deployment: Any) -> Any:
    """A deployment's one container."""
    [only] = deployment["spec"]["template"]["spec"]["containers"]
    return only


def entrypoint(service: Any) -> str:
    """What an image built here runs: the Dockerfile says it, and the name of the image."""
    kind = Path(service["build"]["dockerfile"]).name.removesuffix(".Dockerfile")
    return ENTRYPOINTS[kind]


def unit(name: str) -> dict[str, list[str]]:
    """The settings of a systemd unit, each with all values that it is given."""
    text = (DEPLOY / "systemd" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    settings: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        settings.setdefault(key, []).append(value)
    return settings


def unit_names() -> list[str]:
    """The systemd units."""
    return sorted(path.name for path in (DEPLOY / "systemd").glob("*.service"))


def unit_command(name: str) -> list[str]:
    """What a unit runs, in the environment that it gives: unbraced variables become words."""
    settings = unit(name)
    given = (pair.partition("=") for line in settings["Environment"] for pair in line.split())
    environment = {key: value for key, _, value in given}
    [line] = settings["ExecStart"]
    words = re.sub(r"\$\{?(\w+)\}?", lambda found: environment[found[1]], line)
    program, *arguments = shlex.split(words)
    return [Path(program).name, *arguments]


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Where each command line of ours stands, and its words."""
    for name, service in compose()["services"].items():
        if "build" in service:
            yield f"compose {name}", [entrypoint(service), *service["command"]]
            if "healthcheck" in service:
                yield f"compose {name} health", service["healthcheck"]["test"][1:]
    for deployment in verifier_deployments():
        runs = container(deployment)
        yield f"kubernetes {len(runs['args'])}", ["draftwire-verifier", *runs["args"]]
        for probe in PROBES:
            if probe in runs:
                yield f"kubernetes {probe}", runs[probe]["exec"]["command"]
    for name in unit_names():
        yield name, unit_command(name)
    for path in sorted(ROOT.glob("deploy/**/*.yaml")) + sorted(ROOT.glob("deploy/**/*.service")):
        text = path.read_text(encoding="utf-8")
        for line in re.findall(
            r"^# .*?\b(draftwire(?:-verifier)? [a-z]+ [^(),]*--[^(),]*)", text, re.M
        ):
            yield f"{path.name}, in a comment", shlex.split(line)
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    for line in re.findall(r"run --rm device (.*)", text):
        yield "compose, in a comment", ["draftwire", *shlex.split(line)]


def option(words: list[str], name: str) -> str:
    """The value of an option given as --name=value."""
    [value] = [word.partition("=")[2] for word in words if word.startswith(f"--{name}=")]
    return value


def dashboard() -> Any:
    """The Grafana dashboard."""
    return json.loads((DEPLOY / "grafana/draftwire.json").read_text(encoding="utf-8"))
