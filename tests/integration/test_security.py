"""Who gets in: TLS both ways, API keys and quotas, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from table_client import MODEL, Words, on_a_loop

from cloud_verifier import certificates, watched
from cloud_verifier.auth import Keys, new_key
from cloud_verifier.connections import ConnectionBounds
from cloud_verifier.engine import Engine, EngineConfig
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from cloud_verifier.tally import Tally
from cloud_verifier.tls import TlsFiles
from draftwire import codec
from draftwire.addresses import split_address
from draftwire.credentials import Credentials
from draftwire.errors import (
    DraftwireError,
    InvalidRequest,
    LinkLost,
    LinkNotSecure,
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
)
from draftwire.types import Draft, History, ModelCard, Open, Opened, ServingLimits
from draftwire.v1 import verifier_pb2_grpc as rpc
from edge_client import AsyncEdgeClient, RetryPolicy
from edge_client.drafters.table import TableDrafter
from edge_client.transport import GrpcTransport, Link, WireBytes
from edge_client.verifier_process import VerifierProcess

PROMPT = (5, 6, 7)
HERE = ["localhost", "127.0.0.1"]
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
NO_RETRY = RetryPolicy(first_wait_s=0.01, give_up_after_s=0.0)

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of an authority that both sides know."""
    folder = tmp_path_factory.mktemp("pki")
    certificates.make(folder, HERE, client="device", days=2)
    return folder


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of an authority that nobody knows."""
    folder = tmp_path_factory.mktemp("others")
    certificates.make(folder, HERE, client="device", days=2)
    return folder


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "LOOK_EVERY_S", 0.0)


def tls(folder: Path, *, mutual: bool = False) -> TlsFiles:
    return TlsFiles(
        certificate=folder / "server.pem",
        key=folder / "server.key",
        client_ca=folder / "ca.pem" if mutual else None,
    )


def device(folder: Path, **changes: Any) -> Credentials:
    known = Credentials(
        ca=folder / "ca.pem", certificate=folder / "device.pem", key=folder / "device.key"
    )
    return replace(known, **changes)


class Guarded:
    """A verifier with a keys file, and what it counts."""

    def __init__(self, server: VerifierServer, tally: Tally) -> None:
        self.server = server
        self.address = server.address
        self.tally = tally

    @property
    def errors(self) -> dict[str, int]:
        return {code: count for code, count in self.tally.errors.items() if count}


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Guarded]:
    tally = Tally()
    config = EngineConfig(**options.pop("engine", {}))
    target = TableTarget(MODEL, limits=ServingLimits(max_context=2048), num_blocks=256)
    engine = Engine(target, config, observer=tally)
    async with VerifierServer(engine, "127.0.0.1:0", grace_s=0.0, **options) as server:
        yield Guarded(server, tally)


@contextlib.asynccontextmanager
async def client(address: str, credentials: Credentials) -> AsyncIterator[AsyncEdgeClient]:
    drafters = [TableDrafter(MODEL.perturbed(0.3, seed=1))]
    async with AsyncEdgeClient(
        address, Words(), drafters, credentials=credentials, retry=NO_RETRY
    ) as made:
        yield made


async def text_of(address: str, credentials: Credentials, count: int = 20) -> list[int]:
    async with client(address, credentials) as made:
        stream = made.generate(list(PROMPT), max_tokens=count, ignore_eos=True)
        return [int(word) for word in (await stream.read()).split()]


async def refusal(address: str, credentials: Credentials) -> DraftwireError:
    with pytest.raises(DraftwireError) as caught:
        await text_of(address, credentials)
    return caught.value


@contextlib.asynccontextmanager
async def raw_link(address: str, credentials: Credentials) -> AsyncIterator[Link]:
    transport = GrpcTransport(address, credentials)
    try:
        async with transport.connect(WireBytes()) as link:
            yield link
    finally:
        await transport.close()


def opening(**changes: Any) -> Open:
    values: dict[str, Any] = {
        "session_id": bytes(range(16)),
        "attempt": 1,
        "generation": 1,
        "start": len(PROMPT),
        "history": History(tokens=PROMPT),
        "vocabulary_fingerprint": Words.fingerprint,
    }
    return Open(**(values | changes))


class KeysFile:
    """A file of keys that is written again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[str, str] = {}

    def add(self, name: str, **fields: Any) -> Credentials:
        key, line = new_key(name)
        self._lines[name] = json.dumps(json.loads(line) | fields)
        self.save()
        return Credentials(api_key=key)

    def drop(self, name: str) -> None:
        del self._lines[name]
        self.save()

    def save(self) -> None:
        self.path.write_text("\n".join(self._lines.values()))

    def keys(self) -> Keys:
        return Keys(self.path)


@pytest.fixture
def keys_file(tmp_path: Path) -> KeysFile:
    return KeysFile(tmp_path / "keys")


# ------------------------------------------------------------------ TLS


@on_a_loop
async def test_over_tls_the_text_is_the_targets_own(pki: Path) -> None:
    async with serving(tls=tls(pki)) as verifier:
        known = Credentials(ca=pki / "ca.pem")
        assert await text_of(verifier.address, known) == MODEL.generate(PROMPT, 20)


@on_a_loop
async def test_a_verifier_of_another_authority_is_not_trusted(pki: Path, others: Path) -> None:
    async with serving(tls=tls(pki)) as verifier:
        refused = await refusal(verifier.address, Credentials(ca=others / "ca.pem"))
        assert isinstance(refused, LinkNotSecure)
        assert "issuer" in refused.message
        assert not verifier.server.engine.active


@on_a_loop
async def test_a_certificate_for_another_host_is_not_trusted(tmp_path: Path) -> None:
    certificates.make(tmp_path, ["gpu.example.net"], client="device", days=2)
    async with serving(tls=tls(tmp_path)) as verifier:
        refused = await refusal(verifier.address, Credentials(ca=tmp_path / "ca.pem"))
        assert isinstance(refused, LinkNotSecure)


@on_a_loop
async def test_an_expired_certificate_is_not_trusted(tmp_path: Path) -> None:
    certificates.make(tmp_path, HERE, client="device", days=2)
    certificates.make(tmp_path, HERE, client="device", days=-1)  # of the same authority
    async with serving(tls=tls(tmp_path)) as verifier:
        refused = await refusal(verifier.address, Credentials(ca=tmp_path / "ca.pem"))
        assert isinstance(refused, LinkNotSecure)
        assert "expired" in refused.message


@on_a_loop
async def test_a_network_that_takes_tls_away_is_noticed(pki: Path) -> None:
    async with serving() as verifier:  # plaintext, where the client was told of TLS
        refused = await refusal(verifier.address, Credentials(ca=pki / "ca.pem"))
        assert isinstance(refused, LinkNotSecure)
        assert "does not speak TLS" in refused.message


@on_a_loop
async def test_plaintext_to_a_verifier_with_tls_gets_nowhere(pki: Path) -> None:
    async with serving(tls=tls(pki)) as verifier:
        refused = await refusal(verifier.address, Credentials())
        assert isinstance(refused, LinkLost)
        assert "speaks plaintext" in refused.remedy


@on_a_loop
async def test_mutual_tls_admits_whom_the_authority_signed(pki: Path, others: Path) -> None:
    async with serving(tls=tls(pki, mutual=True)) as verifier:
        assert await text_of(verifier.address, device(pki)) == MODEL.generate(PROMPT, 20)
        for stranger in (
            Credentials(ca=pki / "ca.pem"),
            device(others, ca=pki / "ca.pem"),
            device(pki, certificate=pki / "server.pem", key=pki / "server.key"),
        ):
            assert isinstance(await refusal(verifier.address, stranger), LinkLost)


@on_a_loop
@pytest.mark.parametrize("field", ["CN", "O"])  # a certificate need not have a name
async def test_a_session_belongs_to_the_certificate_that_opened_it(
    pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    shutil.copytree(pki, tmp_path, dirs_exist_ok=True)
    openssl = certificates._openssl

    def with_field(*arguments: str) -> None:
        openssl(*(argument.replace("/CN=", f"/{field}=") for argument in arguments))

    monkeypatch.setattr(certificates, "_openssl", with_field)
    certificates.make(tmp_path, HERE, client="device", days=2)
    certificates.make(tmp_path, HERE, client="other", days=2)
    other = device(tmp_path, certificate=tmp_path / "other.pem", key=tmp_path / "other.key")
    async with serving(tls=tls(tmp_path, mutual=True)) as verifier:
        async with raw_link(verifier.address, device(tmp_path)) as link:
            await link.send(opening())
            assert isinstance(await link.receive(), Opened)
        async with raw_link(verifier.address, other) as link:
            await link.send(opening(attempt=2))
            with pytest.raises(PermissionDenied):
                await link.receive()


@on_a_loop
async def test_a_new_certificate_takes_over_without_a_restart(
    pki: Path, others: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(pki, tmp_path, dirs_exist_ok=True)
    async with serving(tls=tls(tmp_path)) as verifier:
        before, after = Credentials(ca=pki / "ca.pem"), Credentials(ca=others / "ca.pem")
        assert await text_of(verifier.address, before)
        shutil.copy(others / "server.pem", tmp_path / "server.pem")
        with caplog.at_level(logging.ERROR):
            assert await text_of(verifier.address, before)  # the key is still the old one's
        assert "the certificates stay as they were" in caplog.text
        shutil.copy(others / "server.key", tmp_path / "server.key")
        assert await text_of(verifier.address, after)
        assert isinstance(await refusal(verifier.address, before), LinkNotSecure)


@pytest.mark.parametrize("name", ["server.pem", "server.key", "ca.pem"])
def test_certificates_that_do_not_fit_are_refused_before_anything_is_served(
    pki: Path, others: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(pki, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text("no certificate")
    with pytest.raises(InvalidRequest, match="can't be used"):
        tls(tmp_path, mutual=True)
    if name == "server.key":
        shutil.copy(others / name, tmp_path / name)
        with pytest.raises(InvalidRequest, match="can't be used"):
            tls(tmp_path)


@on_a_loop
async def test_handshakes_that_bring_no_call_show_in_the_counts(pki: Path, others: Path) -> None:
    async with serving(tls=tls(pki, mutual=True)) as verifier:
        assert await text_of(verifier.address, device(pki))
        assert (verifier.tally.handshakes, verifier.tally.connections) == (1, 1)
        strangers = (
            Credentials(),
            Credentials(ca=pki / "ca.pem"),
            device(others, ca=pki / "ca.pem"),
        )
        for stranger in strangers:
            before = verifier.tally.handshakes
            await refusal(verifier.address, stranger)
            assert verifier.tally.handshakes > before
            assert verifier.tally.connections == 1
        assert verifier.errors == {}


# ------------------------------------------------------------------ the client's own rules


def test_what_leaves_the_machine_is_encrypted_unless_it_was_asked_not_to_be() -> None:
    for here in ("127.0.0.1:7433", "localhost:7433", "[::1]:7433", "unix:/run/draftwire"):
        assert not Credentials().secures(here)
        assert Credentials(ca="ca.pem").secures(here)
    for elsewhere in ("gpu.example.net:7433", "192.0.2.1:7433", "[2001:db8::1]:7433"):
        assert Credentials(api_key="k").secures(elsewhere)
        assert not Credentials(api_key="k", insecure=True).secures(elsewhere)


@on_a_loop
async def test_what_stays_on_the_machine_goes_to_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    came = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.read(4096))
        writer.close()

    async with serving() as verifier, await asyncio.start_server(proxy, "127.0.0.1", 0) as listens:
        host, port = listens.sockets[0].getsockname()
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://{host}:{port}")
        assert len(await text_of(verifier.address, Credentials())) == 20
    assert came == []


def test_credentials_that_contradict_each_other_are_refused() -> None:
    for wrong in ({"certificate": "a"}, {"key": "a"}, {"ca": "a", "insecure": True}):
        with pytest.raises(InvalidRequest):
            Credentials(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        Credentials(api_key="two\nlines")


def test_credentials_do_not_show_the_key() -> None:
    assert "secret" not in repr(Credentials(api_key="secret"))


@on_a_loop
async def test_padding_makes_all_frames_of_a_stream_one_length_or_its_multiple() -> None:
    async with serving() as verifier:
        async with client(verifier.address, Credentials(padding=512)) as made:
            stream = made.generate(list(PROMPT), max_tokens=40, ignore_eos=True)
            assert [int(word) for word in (await stream.read()).split()] == MODEL.generate(
                PROMPT, 40
            )
        sizes = verifier.tally.up_bytes + verifier.tally.down_bytes
        assert sizes["draft"] > 0
        assert [size % 512 for size in sizes.values()] == [0] * len(sizes)


@pytest.mark.parametrize("asked", ["15", "4097", "-16", "many", ""])
@on_a_loop
async def test_padding_that_makes_no_sense_is_refused(asked: str) -> None:
    async with serving() as verifier, grpc.aio.insecure_channel(verifier.address) as channel:
        call = rpc.VerifierStub(channel).Decode(metadata=(("draftwire-padding", asked),))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert dict(await call.trailing_metadata())["draftwire-code"] == "INVALID_REQUEST"
        assert verifier.errors == {"INVALID_REQUEST": 1}
    with pytest.raises(InvalidRequest):
        Credentials(padding=15)


# ------------------------------------------------------------------ API keys


@on_a_loop
async def test_a_key_lets_in(keys_file: KeysFile) -> None:
    mine = keys_file.add("phone")
    async with serving(keys=keys_file.keys()) as verifier:
        assert await text_of(verifier.address, mine) == MODEL.generate(PROMPT, 20)
        assert verifier.errors == {}


STRANGERS: dict[str, Callable[[KeysFile], Credentials]] = {
    "missing": lambda _: Credentials(),
    "wrong": lambda _: Credentials(api_key=new_key("phone")[0]),
    "expired": lambda file: file.add("phone", expires="2020-01-01T00:00:00Z"),
    "revoked": lambda file: _revoked(file),
}


def _revoked(file: KeysFile) -> Credentials:
    gone = file.add("tablet")
    file.drop("tablet")
    return gone


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
@on_a_loop
async def test_whoever_has_no_key_is_refused_logged_and_counted(
    keys_file: KeysFile,
    caplog: pytest.LogCaptureFixture,
    stranger: Callable[[KeysFile], Credentials],
) -> None:
    keys_file.add("phone")
    async with serving(keys=keys_file.keys()) as verifier:
        credentials = stranger(keys_file)
        with caplog.at_level(logging.INFO):
            assert isinstance(await refusal(verifier.address, credentials), Unauthenticated)
            async with raw_link(verifier.address, credentials) as link:
                await link.send(opening())
                with pytest.raises(Unauthenticated):
                    await link.receive()
        assert verifier.errors == {"UNAUTHENTICATED": 2}
        refused = [record for record in caplog.records if hasattr(record, "code")]
        assert [record.code for record in refused] == ["UNAUTHENTICATED"] * 2
        assert all(record.levelno == logging.WARNING for record in refused)
        assert credentials.api_key == "" or credentials.api_key not in caplog.text
        assert not verifier.server.engine.active


@on_a_loop
async def test_a_key_that_is_revoked_ends_its_streams(
    keys_file: KeysFile, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    mine = keys_file.add("phone")
    async with serving(keys=keys_file.keys()) as verifier, raw_link(verifier.address, mine) as link:
        await link.send(opening())
        assert isinstance(await link.receive(), Opened)
        keys_file.drop("phone")
        await link.send(Draft(base=len(PROMPT), epoch=0, credit=1))
        with pytest.raises(Unauthenticated, match="revoked"):
            await link.receive()
        assert verifier.errors == {"UNAUTHENTICATED": 1}
        assert [r.code for r in caplog.records if hasattr(r, "code")] == ["UNAUTHENTICATED"]


@on_a_loop
async def test_another_keys_session_id_opens_nothing(
    keys_file: KeysFile, caplog: pytest.LogCaptureFixture
) -> None:
    mine, theirs = keys_file.add("mine"), keys_file.add("theirs")
    caplog.set_level(logging.INFO)
    async with serving(keys=keys_file.keys()) as verifier:
        async with raw_link(verifier.address, mine) as link:
            await link.send(opening())
            assert isinstance(await link.receive(), Opened)
            async with raw_link(verifier.address, theirs) as stolen:
                await stolen.send(opening(attempt=2))
                with pytest.raises(PermissionDenied):
                    await stolen.receive()
            await link.send(Draft(base=len(PROMPT), epoch=0, credit=1))
            assert await link.receive()  # the session goes on, undisturbed
        assert verifier.errors == {"PERMISSION_DENIED": 1}
        refused = [vars(record) for record in caplog.records if hasattr(record, "code")]
        assert [record["code"] for record in refused] == ["PERMISSION_DENIED"]
        assert refused[0]["session"] == opening().session_id.hex()


@on_a_loop
async def test_keys_and_certificates_can_be_asked_for_together(
    pki: Path, keys_file: KeysFile
) -> None:
    mine = keys_file.add("phone")
    async with serving(tls=tls(pki, mutual=True), keys=keys_file.keys()) as verifier:
        both = device(pki, api_key=mine.api_key)
        assert await text_of(verifier.address, both) == MODEL.generate(PROMPT, 20)
        assert isinstance(await refusal(verifier.address, device(pki)), Unauthenticated)


@on_a_loop
async def test_quotas_stand_in_the_keys_file(keys_file: KeysFile) -> None:
    mine = keys_file.add("phone", sessions=1, tokens_per_minute=30)
    async with serving(keys=keys_file.keys()) as verifier:
        async with raw_link(verifier.address, mine) as link:
            await link.send(opening())
            assert isinstance(await link.receive(), Opened)
            refused = await refusal(verifier.address, mine)
            assert isinstance(refused, QuotaExceeded)
            assert "1 generations" in refused.message
        async with client(verifier.address, mine) as made:
            stream = made.generate(list(PROMPT), max_tokens=100, ignore_eos=True)
            with pytest.raises(QuotaExceeded, match="30 tokens per minute"):
                await stream.read()
        assert verifier.errors == {"QUOTA_EXCEEDED": 2}
        keys_file.add("tablet")  # a file that changes changes nothing for the others
        assert isinstance(await refusal(verifier.address, mine), QuotaExceeded)


# ------------------------------------------------------------------ connections


@pytest.mark.parametrize(
    "says", [b"", b"GET / HTTP/1.1\r\n\r\n", HTTP2], ids=["nothing", "http", "h2"]
)
@on_a_loop
async def test_a_connection_that_brings_no_stream_is_closed(says: bytes) -> None:
    bounds = ConnectionBounds(greet_within_s=0.2, idle_s=0.3)
    async with serving(connections=bounds) as verifier:
        reader, writer = await asyncio.open_connection(*split_address(verifier.address))
        writer.write(says)
        with contextlib.suppress(ConnectionError):
            await reader.read()  # to its end
        writer.close()


@on_a_loop
async def test_beyond_the_most_connections_others_are_closed_and_those_there_are_go_on() -> None:
    bounds = ConnectionBounds(max_connections=4)
    async with (
        serving(connections=bounds) as verifier,
        client(verifier.address, Credentials()) as made,
    ):
        await made.card()
        address = split_address(verifier.address)
        opened = [await asyncio.open_connection(*address) for _ in range(6)]
        for _, writer in opened:
            writer.write(HTTP2)
        answers = await asyncio.gather(
            *(reader.read(1) for reader, _ in opened), return_exceptions=True
        )
        assert (
            sum(answer not in (b"",) and not isinstance(answer, Exception) for answer in answers)
            == 3
        )
        stream = made.generate(list(PROMPT), max_tokens=20, ignore_eos=True)
        assert len((await stream.read()).split()) == 20
        for _, writer in opened:
            writer.close()


@on_a_loop
async def test_a_flood_is_held_back_at_its_sender() -> None:
    """Frames that wait for their turn must not pile up in the verifier's memory."""
    async with serving() as verifier, grpc.aio.insecure_channel(verifier.address) as channel:
        call = rpc.VerifierStub(channel).Decode()
        await call.write(codec.encode_client(opening()))
        nothing = codec.encode_client(Draft(base=len(PROMPT), epoch=0))
        codec.pad(nothing, 1024)
        written = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                while written < 1000:
                    await call.write(nothing)
                    written += 1
        assert 64 <= written < 1000
        call.cancel()


# ------------------------------------------------------------------ the commands


def test_the_authority_is_kept_and_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    first = certificates.make(tmp_path / "new", HERE, client="device", days=2)
    assert [path.name for path in first] == [
        *("ca.pem", "ca.key", "server.pem", "server.key", "device.pem", "device.key")
    ]
    authority = first[0].read_bytes()
    again = certificates.make(tmp_path / "new", HERE, client="other", days=2)
    assert again[-1].name == "other.key"
    assert first[0].read_bytes() == authority
    assert {path.stat().st_mode & 0o777 for path in first if path.suffix == ".key"} == {0o600}


@pytest.mark.parametrize(
    ("host", "client"), [("a\nb", "device"), ("a,DNS:b", "device"), ("a", "ca"), ("a", "../b")]
)
def test_names_that_would_mean_something_else_are_refused(
    tmp_path: Path, host: str, client: str
) -> None:
    with pytest.raises(InvalidRequest, match="no name for a certificate"):
        certificates.make(tmp_path, [host], client=client, days=2)


def test_a_verifier_that_others_can_reach_serves_with_what_its_own_commands_made(
    tmp_path: Path,
) -> None:
    verifier = [sys.executable, "-m", "cloud_verifier"]

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*verifier, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | environment,
        )

    made = run("certs", str(tmp_path), "--host=localhost", "--host=127.0.0.1")
    assert made.stdout.splitlines()[2] == str(tmp_path / "server.pem")
    key = run("keys", "new", "phone")
    (tmp_path / "keys").write_text(key.stdout)
    api_key = key.stderr.split()[-1]
    serve = [
        *("--model=table", "--listen=0.0.0.0:0", f"--keys={tmp_path / 'keys'}"),
        *(f"--tls-cert={tmp_path / 'server.pem'}", f"--tls-key={tmp_path / 'server.key'}"),
    ]
    with VerifierProcess(serve) as process:
        address = f"localhost:{process.address.rpartition(':')[2]}"
        known = Credentials(ca=tmp_path / "ca.pem", api_key=api_key)
        assert asyncio.run(card_of(address, known)).target.model == "table"
        healthy = run("health", address, f"--ca={tmp_path / 'ca.pem'}")
        assert healthy.stdout == f"{address}: serving\n"
        refused = run("health", address, f"--ca={tmp_path / 'keys'}")
        assert refused.returncode == 1


async def card_of(address: str, credentials: Credentials) -> ModelCard:
    transport = GrpcTransport(address, credentials)
    try:
        return await transport.describe()
    finally:
        await transport.close()
