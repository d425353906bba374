"""An endpoint over real HTTP before a verifier over real gRPC, both on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from both_clients import GatedTarget, serving
from openai import OpenAI

from cloud_verifier.server import VerifierServer
from draftwire.testing.link import LinkEmulator, LinkProfile, ThreadedLink
from draftwire.testing.table import TableModel, TableTokenizer
from edge_client.client import AsyncEdgeClient
from edge_client.drafter import Drafter
from edge_client.drafters.table import TableDrafter
from edge_client.endpoint.app import Endpoint, build_app
from edge_client.endpoint.server import bind, server_of
from edge_client.retry import RetryPolicy
from edge_client.sync import _Loop

T = TypeVar("T")

MODEL = TableModel(vocabulary_size=320, eos_rate=0.0)
TOKENIZER = TableTokenizer(320)

PATIENT = RetryPolicy(first_wait_s=0.05, longest_wait_s=0.1, give_up_after_s=30)
QUICK = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02, give_up_after_s=0.1)


def mostly_right(seed: int = 1, amount: float = 0.3) -> TableDrafter:
    """A drafter that some of the time agrees with the target."""
    return TableDrafter(MODEL.perturbed(amount, seed=seed))


def text_of(ids: Sequence[int]) -> str:
    return b"".join(map(TOKENIZER.piece, ids)).decode(errors="replace")


def alone(prompt: str | Sequence[int], count: int) -> list[int]:
    """What the target alone says greedily."""
    return MODEL.generate(TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt, count)


def chat_prompt(text: str) -> str:
    """A question in the table model's chat template."""
    return f"user: {text}\nassistant:"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An endpoint, the client behind it, and the verifier behind that."""

    url: str
    client: AsyncEdgeClient
    verifier: VerifierServer
    threads: ThreadPoolExecutor
    link: ThreadedLink | None = None

    def openai(self, **options: Any) -> OpenAI:
        """The official client, which does not try again."""
        return OpenAI(
            base_url=f"{self.url}/v1", api_key="none", **{"max_retries": 0, "timeout": 60} | options
        )

    def post(self, path: str, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", timeout=60, **options)

    def later(self, call: Callable[[], T]) -> Future[T]:
        """Do something in another thread."""
        return self.threads.submit(call)

    @property
    def gate(self) -> GatedTarget:
        """The verifier's target."""
        target = self.verifier.engine.target
        assert isinstance(target, GatedTarget)
        return target

    @property
    def drafters_free(self) -> int:
        return self.client._free.qsize()

    def wait_until_idle(self) -> None:
        """Return when no generation is in flight at the verifier."""
        wait_until(lambda: not self.verifier.engine.active)


def wait_until(true: Any, within_s: float = 10.0) -> None:
    late = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < late, "it did not come about in time"
        time.sleep(0.002)


@contextlib.contextmanager
def endpoint(client: AsyncEdgeClient, **options: Any) -> Iterator[str]:
    """Serve `client` over HTTP; gives the URL."""
    listening = bind("127.0.0.1:0")
    port = listening.getsockname()[1]
    server = server_of(build_app(Endpoint(client, **options), ("127.0.0.1", "localhost")))

    async def serve() -> None:
        await server.serve(sockets=[listening])

    stopped = asyncio.run_coroutine_threadsafe(serve(), _Loop._get())
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()
        stopped.result(30)


@contextlib.contextmanager
def world(
    drafters: Sequence[Drafter],
    *,
    profile: LinkProfile | None = None,
    k: int | None = None,
    **options: Any,
) -> Iterator[World]:
    """A table verifier and an endpoint that drafts with these; `options` are the endpoint's.

    With a `profile` there is a link like that between them; `k` drafts a round are the default.
    """
    with contextlib.ExitStack() as stack:
        verifier = stack.enter_context(serving(MODEL))
        address, link, retry = verifier.address, None, QUICK
        if profile is not None:
            link = stack.enter_context(LinkEmulator.in_thread(address, profile))
            address, retry = link.address, PATIENT
        client = AsyncEdgeClient(address, TOKENIZER, drafters, retry=retry)
        client._defaults = {"num_draft_tokens": k}
        stack.callback(lambda: _Loop.run(client.close()))
        url = stack.enter_context(endpoint(client, **options))
        threads = stack.enter_context(ThreadPoolExecutor(16))
        yield World(url=url, client=client, verifier=verifier, threads=threads, link=link)
