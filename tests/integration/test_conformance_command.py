"""`draftwire conformance` with clients in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.conformance.scenarios import SCENARIOS

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "conformance_client.py"
CHECKER = [sys.executable, "-m", "edge_client", "conformance"]
NEEDLESS = ("torch", "transformers", "grpc_health", "grpc_reflection", "prometheus_client")


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHECKER, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_our_client_passes_over_grpc(tmp_path: Path) -> None:
    done = checked("--json", "--traces", str(tmp_path), "--", sys.executable, str(EXAMPLE))
    states = {came["scenario"]: came["state"] for came in json.loads(done.stdout)["scenarios"]}
    assert states == {scenario.name: "passed" for scenario in SCENARIOS}
    assert done.returncode == 0
    assert {path.stem for path in tmp_path.glob("*.json")} == set(states)
    assert json.loads((tmp_path / "cut.json").read_text())["frames"]


@pytest.mark.slow
def test_a_client_may_come_by_itself() -> None:
    [task] = map(json.loads, checked("--only", "rejection", "--tasks").stdout.splitlines())
    checker = subprocess.Popen(
        [*CHECKER, "--only", "rejection"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert checker.stderr is not None
    [task["verifier"]] = re.findall(r"judging clients on (\S+);", checker.stderr.readline())
    client = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    out, _ = checker.communicate(timeout=60)
    assert out == "passed     rejection\n1 scenarios: 1 passed\n"
    assert checker.returncode == 0
    answer: dict[str, Any] = json.loads(client.stdout)
    assert len(answer["tokens"]) == task["max_tokens"]


def test_scenarios_that_nobody_came_to_are_only_counted() -> None:
    pipe = subprocess.PIPE
    checker = subprocess.Popen(CHECKER, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert checker.stderr is not None
    checker.stderr.readline()
    os.killpg(checker.pid, signal.SIGINT)  # as a terminal does at Ctrl-C
    out, _ = checker.communicate(timeout=60)
    assert out == f"{len(SCENARIOS)} scenarios: {len(SCENARIOS)} not run\n"
    assert checker.returncode == 1


@pytest.mark.slow
def test_neither_torch_nor_the_clouds_extra_is_needed() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({NEEDLESS}));"
    script = f"{blocked} from cloud_verifier.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["conformance", "--only", "round", "--", sys.executable, str(EXAMPLE)]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "1 scenarios: 1 passed", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "why"),
    [
        ("print('[]', '{', '1', sep='\\n')", "it ended without an answer, exit status 0"),
        (
            "input(); print('{\"tokens\": []}')",
            "the client ended before its generation had finished",
        ),
        ("input(); input()", "no answer in 1 s"),
    ],
)
def test_a_client_that_does_nothing_fails(client: str, why: str) -> None:
    done = checked("--only", "round", "--timeout", "1", "--", sys.executable, "-c", client)
    assert done.returncode == 1
    assert why in done.stdout
    assert done.stdout.splitlines()[-1] == "1 scenarios: 1 failed"


def test_an_unknown_scenario_is_refused_by_name() -> None:
    done = checked("--only", "rounds", "--list")
    assert done.returncode == 1
    assert "there is no scenario rounds" in done.stderr
