"""The verifier's command as its operators run it: metrics and logs."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("prometheus_client", reason="needs the cloud extra")

SERVE = [sys.executable, "-m", "cloud_verifier", "serve", "--model=table", "--listen=127.0.0.1:0"]


def test_a_verifier_serves_its_metrics_and_logs_json_until_it_is_stopped() -> None:
    command = [*SERVE, "--metrics=127.0.0.1:0", "--log-format=json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline().startswith("serving table on 127.0.0.1:")
            first = json.loads(process.stderr.readline())
            found = re.fullmatch(r"metrics on http://(127\.0\.0\.1:\d+)/metrics", first["message"])
            assert found is not None
            with urllib.request.urlopen(f"http://{found[1]}/metrics") as response:
                assert 'draftwire:num_requests_running{model_name="table"} 0.0' in (
                    response.read().decode()
                )
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
        assert process.wait(timeout=30) == 0
        assert [json.loads(line) for line in rest.splitlines()] == []


@pytest.mark.parametrize("address", ["0.0.0.0:0", "taken"])
def test_an_address_for_metrics_that_is_open_or_taken_is_refused(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if address == "taken":
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*SERVE, f"--metrics={address}"], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "draftwire-verifier: INVALID_REQUEST: " in done.stderr
