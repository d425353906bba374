"""Devices that come and go: finish, cancel, walk away, vanish, misbehave, come back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench._fault_plan import difference
from bench._known_text import KnownText, KnownTextDrafter
from bench._oracle import Oracle
from draftwire.errors import DraftwireError, ProtocolViolation
from draftwire.testing.link import LinkEmulator, LinkProfile
from draftwire.types import (
    SESSION_ID_BYTES,
    Draft,
    FinishReason,
    History,
    Open,
    StopRules,
    Verdict,
    common_prefix,
    history_hash,
)
from edge_client.client import AsyncEdgeClient
from edge_client.failover import FailoverTransport
from edge_client.retry import RetryPolicy
from edge_client.session import Session
from edge_client.transport import GrpcTransport, Transport, WireBytes

LENGTHS = (0, 1, 2, 3, 5, 8, None)  # K; None adapts
SHARE_WRONG = 0.15
MEAN_CUT_S = 15.0  # between two cuts of one link
RETRY = RetryPolicy(first_wait_s=0.05, longest_wait_s=1.0, give_up_after_s=300.0)
WAYS = {"finish": 60, "cancel": 12, "leave": 12, "vanish": 10, "misbehave": 6}
AWAY = ("LINK_LOST", "UNAVAILABLE", "DRAINING")  # whoever is to be refused may find nobody to do it

# What else a network and a reader may do.
DISTURBANCES = {"cut": 4, "outage": 2, "stall": 3, "trickle": 2}
SHARE_SLOW = 0.1  # of generations: their reader rests after every delta
REST_S = 0.02


@dataclass(slots=True)
class Outcomes:
    """What came of all generations. `ends` counts the ways they ended."""

    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    reopened: int = 0
    disturbed: dict[str, int] = field(default_factory=Counter)
    ties: int = 0
    differences: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def compare(
    oracle: Oracle,
    text: KnownText,
    expected: Sequence[int],
    got: Sequence[int],
    outcomes: Outcomes,
    *,
    held: int = 0,
) -> None:
    """Hold what came of a text after its first `held` tokens against what should have."""
    place = common_prefix(got, expected)
    if place < min(len(got), len(expected)) and oracle.tie(text, held + place, got[place]):
        outcomes.ties += 1  # and what follows is another text
    elif found := difference(expected, got):
        outcomes.differences.append(f"{found}, of {expected} with {held} before")


class Site:
    """Some devices behind one link to each verifier, which are cut now and then.

    With several verifiers, the next is used when one fails, links do worse than be cut, and some
    readers are slow.
    """

    def __init__(self, verifiers: Sequence[str], oracle: Oracle, devices: int, seed: int) -> None:
        self._oracle = oracle
        self._links = [LinkEmulator(verifier) for verifier in verifiers]
        self._faults = len(verifiers) > 1
        self._devices = devices
        self._draw = random.Random(seed)
        self._drafters = [
            KnownTextDrafter(oracle.texts, wrong=SHARE_WRONG, seed=seed + i) for i in range(devices)
        ]

    async def run(self, outcomes: Outcomes, over: Callable[[], bool]) -> None:
        """Generate on all devices until it is `over`, then let each come to its end."""
        async with contextlib.AsyncExitStack() as stack:
            links = [await stack.enter_async_context(link) for link in self._links]
            transports = [GrpcTransport(link.address) for link in links]
            transport = FailoverTransport(transports, retry_after_s=1.0)
            client = AsyncEdgeClient(transport, self._oracle.tokenizer, self._drafters, retry=RETRY)
            async with client, asyncio.TaskGroup() as group:
                disturbing = [group.create_task(self._disturb(link, outcomes)) for link in links]
                devices = [
                    group.create_task(self._device(client, transport, outcomes, over))
                    for _ in range(self._devices)
                ]
                await asyncio.wait(devices)
                for task in disturbing:
                    task.cancel()

    async def _disturb(self, link: LinkEmulator, outcomes: Outcomes) -> None:
        usual, draw = link.profile, self._draw
        while True:
            await asyncio.sleep(draw.expovariate(1 / MEAN_CUT_S))
            kinds = DISTURBANCES if self._faults else {"cut": 1}
            kind = draw.choices(list(kinds), list(kinds.values()))[0]
            outcomes.disturbed[kind] += 1
            if kind == "stall":
                up = draw.random() < 0.6
                await link.stall(draw.uniform(0.1, 3.0), up=up, down=not up or draw.random() < 0.5)
            elif kind == "trickle":
                link.set_profile(LinkProfile(rtt_ms=60, mbit_s=0.008))
                await asyncio.sleep(draw.uniform(0.5, 3.0))
                link.set_profile(usual)
            else:
                link.cut(refuse_s=draw.uniform(0.1, 2.0) if kind == "outage" else 0.0)

    async def _device(
        self,
        client: AsyncEdgeClient,
        transport: Transport,
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
        slow = self._faults and draw.random() < SHARE_SLOW
        async with stream:
            async for delta in stream:
                got += [token.id for token in delta.tokens]
                if slow:
                    await asyncio.sleep(REST_S)
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
        length = most if whole else len(got)
        compare(self._oracle, text, text.text[held : held + length], got, outcomes, held=held)

    async def _vanish(self, transport: Transport, text: KnownText, held: int) -> None:
        """Open, let the cloud decode, and be gone without a word."""
        with contextlib.suppress(DraftwireError):  # a cut is as good as vanishing
            async with transport.connect(WireBytes()) as link:
                opening = self._opening(text, held)
                await link.send(opening)
                await link.send(Draft(base=opening.start, epoch=0, credit=64))
                while not isinstance(await link.receive(), Verdict):
                    pass

    async def _misbehave(self, transport: Transport, text: KnownText, held: int) -> None:
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
            if error.code not in AWAY:
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
