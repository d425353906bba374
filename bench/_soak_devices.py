"""Devices that come and go: finish, cancel, walk away, vanish, misbehave, come back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from bench._known_text import KnownText, KnownTextDrafter
from bench._oracle import Oracle
from draftwire.errors import DraftwireError, ProtocolViolation
from draftwire.testing.link import LinkEmulator
from draftwire.types import (
    SESSION_ID_BYTES,
    Draft,
    FinishReason,
    History,
    Open,
    StopRules,
    Verdict,
    history_hash,
)
from edge_client.client import AsyncEdgeClient
from edge_client.retry import RetryPolicy
from edge_client.session import Session
from edge_client.transport import GrpcTransport, WireBytes

LENGTHS = (0, 1, 2, 3, 5, 8, None)  # K; None adapts
SHARE_WRONG = 0.15
MEAN_CUT_S = 15.0  # between two cuts of one link
RETRY = RetryPolicy(first_wait_s=0.05, longest_wait_s=1.0, give_up_after_s=300.0)
WAYS = {"finish": 60, "cancel": 12, "leave": 12, "vanish": 10, "misbehave": 6}


@dataclass(slots=True)
class Outcomes:
    """What came of all generations. `ends` counts the ways they ended."""

    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    reopened: int = 0
    cuts: int = 0
    ties: int = 0
    differences: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Site:
    """Some devices behind one link to the verifier, which is cut now and then."""

    def __init__(self, verifier: str, oracle: Oracle, devices: int, seed: int) -> None:
        self._oracle = oracle
        self._link = LinkEmulator(verifier)
        self._devices = devices
        self._draw = random.Random(seed)
        self._drafters = [
            KnownTextDrafter(oracle.texts, wrong=SHARE_WRONG, seed=seed + i) for i in range(devices)
        ]

    async def run(self, outcomes: Outcomes, over: Callable[[], bool]) -> None:
        """Generate on all devices until it is `over`, then let each come to its end."""
        async with self._link as link:
            transport = GrpcTransport(link.address)
            client = AsyncEdgeClient(transport, self._oracle.tokenizer, self._drafters, retry=RETRY)
            async with client, asyncio.TaskGroup() as group:
                cutting = group.create_task(self._cut(outcomes))
                devices = [
                    group.create_task(self._device(client, transport, outcomes, over))
                    for _ in range(self._devices)
                ]
                await asyncio.wait(devices)
                cutting.cancel()

    async def _cut(self, outcomes: Outcomes) -> None:
        while True:
            await asyncio.sleep(self._draw.expovariate(1 / MEAN_CUT_S))
            self._link.cut()
            outcomes.cuts += 1

    async def _device(
        self,
        client: AsyncEdgeClient,
        transport: GrpcTransport,
        outcomes: Outcomes,
        over: Callable[[], bool],
    ) -> None:
        draw = random.Random(self._draw.getrandbits(64))
        session: Session | None = None
        while not over():
            text = draw.choice(self._oracle.texts)
            held = draw.randrange(len(text.text)) if draw.random() < 0.5 else 0
            way = draw.choices(list(WAYS), list(WAYS.values()))[0]
            try:
                if way == "vanish":
                    await self._vanish(transport, text, held)
                elif way == "misbehave":
                    await self._misbehave(transport, text, held)
                else:
                    if session is None or draw.random() < 0.5:
                        session = await client.session()
                    await self._generate(client, session, text, held, way, draw, outcomes)
                outcomes.ends[way] += 1
            except DraftwireError as error:
                outcomes.errors.append(f"{way}: {error.code}: {error.message}")
                session = None
                await asyncio.sleep(0.1)  # whatever it was, do not storm the verifier

    async def _generate(
        self,
        client: AsyncEdgeClient,
        session: Session,
        text: KnownText,
        held: int,
        way: str,
        draw: random.Random,
        outcomes: Outcomes,
    ) -> None:
        """Go on with a text of which the prompt holds some tokens, to an end of that way."""
        most = draw.randint(1, len(text.text) - held)
        stop_at = draw.randint(1, most)
        stream = client.generate(
            [*text.prompt, *text.text[:held]],
            max_tokens=most,
            temperature=text.sampling.temperature,
            seed=text.sampling.seed,
            ignore_eos=True,
            num_draft_tokens=draw.choice(LENGTHS),
            session=session,
        )
        got: list[int] = []
        async with stream:
            async for delta in stream:
                got += [token.id for token in delta.tokens]
                if way != "finish" and len(got) >= stop_at:
                    if way == "leave":
                        break
                    stream.cancel()
        summary = stream.summary
        outcomes.tokens += len(summary.token_ids)
        outcomes.drafted += summary.usage.drafted
        outcomes.accepted += summary.usage.accepted
        outcomes.reopened += summary.streams > 1
        whole = way == "finish" and summary.finish_reason is FinishReason.LENGTH
        if way == "finish" and not whole:
            outcomes.differences.append(f"ended by {summary.finish_reason.value}")
        self._compare(text, held, got, most if whole else len(got), outcomes)

    def _compare(
        self, text: KnownText, held: int, got: list[int], length: int, outcomes: Outcomes
    ) -> None:
        own = text.text[held : held + length]
        for place, (theirs, ours) in enumerate(zip(got, own, strict=False), start=held):
            if theirs != ours:
                if self._oracle.tie(text, place, theirs):
                    outcomes.ties += 1  # and what follows is another text
                else:
                    outcomes.differences.append(f"token {place} of {text.text}: {theirs}")
                return
        if len(got) != length:
            outcomes.differences.append(f"{len(got)} tokens instead of {length}")

    async def _vanish(self, transport: GrpcTransport, text: KnownText, held: int) -> None:
        """Open, let the cloud decode, and be gone without a word."""
        with contextlib.suppress(DraftwireError):  # a cut is as good as vanishing
            async with transport.connect(WireBytes()) as link:
                opening = self._opening(text, held)
                await link.send(opening)
                await link.send(Draft(base=opening.start, epoch=0, credit=64))
                while not isinstance(await link.receive(), Verdict):
                    pass

    async def _misbehave(self, transport: GrpcTransport, text: KnownText, held: int) -> None:
        """Open, and draft where nothing can be; the verifier must refuse it."""
        opening = self._opening(text, held)
        try:
            async with transport.connect(WireBytes()) as link:
                await link.send(opening)
                await link.send(Draft(base=opening.start + 9, epoch=0, tokens=(1,)))
                while True:
                    await link.receive()
        except ProtocolViolation:
            pass
        except DraftwireError as error:
            if error.code != "LINK_LOST":
                raise

    def _opening(self, text: KnownText, held: int) -> Open:
        tokens = (*text.prompt, *text.text[:held])
        return Open(
            session_id=secrets.token_bytes(SESSION_ID_BYTES),
            attempt=1,
            generation=1,
            start=len(tokens),
            history=History(tokens=tokens, prefix_length=0, prefix_hash=history_hash(())),
            vocabulary_fingerprint=self._oracle.tokenizer.fingerprint,
            sampling=text.sampling,
            stop=StopRules(ignore_eos=True),
        )
