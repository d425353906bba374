"""A random world for the wire: real sessions, real service and engine, a toy model, many faults.

Everything is drawn from one seed and runs on virtual time, so that a failing seed is a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wire_referee import RefereedTransport

from cloud_verifier.engine import Arrival, Departure, Detached, Engine, EngineConfig
from cloud_verifier.judge_reference import logprobs_of
from cloud_verifier.service import Step, VerifierService
from cloud_verifier.sessions import Stream
from cloud_verifier.table_target import TableTarget
from draftwire.errors import DraftwireError, LinkLost, SessionGone
from draftwire.noise import gumbel_at
from draftwire.testing.clock import run_virtual
from draftwire.testing.memory import MemoryFaults
from draftwire.testing.table import TableModel, TableTokenizer, table_grammars
from draftwire.types import (
    Finished,
    FinishReason,
    Grammar,
    SamplingParams,
    ServerFrame,
    ServingLimits,
    StopRules,
    TokenLogprobs,
    VerifyMode,
)
from edge_client.drafters.lookup import LookupDrafter
from edge_client.drafters.table import TableDrafter
from edge_client.output import Output
from edge_client.plan import Plan, Round, View, without_the_next
from edge_client.request import Request
from edge_client.results import Kind
from edge_client.retry import RetryPolicy
from edge_client.session import Session
from edge_client.tentative import Shown, Tentative

GRAMMARS = ("[a-z .]+", "(the|ion| of| a){2,9}[.]", "<[^<>]{0,12}>", ".{3}|(ab)*c")
RETRY = RetryPolicy(first_wait_s=0.002, longest_wait_s=0.05, give_up_after_s=1e6)


class RestlessController:
    """Plans at random and changes its mind between events."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._plans = [self._random_plan() for _ in range(rng.choice([1, 1, 4]))]
        self._now = self._plans[0]
        self.patience_s = rng.choice([0.0005, 0.01, 60.0])

    def _random_plan(self) -> Plan:
        rng = self._rng
        kind = rng.choice(["wait", "pipe", "pipe", "cloud", "wait", "shadow"])
        credit = rng.choice([1, 1, 1, 2, 5, 20])
        if kind == "cloud":
            return Plan.cloud_alone(credit)
        if kind == "shadow":
            return Plan.shadow(rng.choice([1, 4]), credit)
        if kind == "wait":
            return Plan.waiting(rng.choice([1, 3, 8]), credit)
        window = rng.choice([1, 2, 5, 12, 40])
        chunk = min(window, rng.choice([1, 2, 4, 8]))
        return Plan(window=window, chunk=chunk, credit=credit, pipelined=True)

    def plan(self, view: View) -> Plan:
        assert len(view.confidences) >= view.sent >= 0
        if self._rng.random() < 0.1:
            self._now = self._rng.choice(self._plans)
        return without_the_next(view, self._now.credit) if view.late else self._now

    def drafted(self, seconds: float, fed: int) -> None:
        assert seconds >= 0
        assert fed >= 0

    def judged(self, outcome: Round) -> None:
        assert outcome.committed >= 0

    def explain(self) -> dict[str, object]:
        return {}


class World:
    """One verifier that restarts, forgets and evicts, and a few clients on poor links."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.model = TableModel(
            vocabulary_size=rng.choice([8, 50, 320]),
            states=128,
            eos_rate=rng.choice([0.0, 1 / 60, 1 / 300]),
            seed=seed % 7,
        )
        self.draft_model = self.model.perturbed(rng.choice([0.0, 0.05, 0.3, 1.0]), seed % 5)
        self.words = TableTokenizer(self.model.vocabulary_size)
        self.limits = ServingLimits(
            max_context=rng.choice([60, 400]), max_rows=rng.choice([2, 3, 6, 17, 33])
        )
        self.num_blocks = rng.choice([-(-self.limits.max_context // 4), 400])  # one text, or all
        self.budget = rng.choice([3, 16, 512])
        self.pass_s = rng.uniform(0.001, 0.01), rng.uniform(0, 0.0005)
        self.faults = MemoryFaults(
            delay_s=rng.choice([0.0005, 0.005, 0.03]),
            jitter_s=rng.choice([0.0, 0.003, 0.03]),
            cut_probability=rng.choice([0.0, 0.5, 0.95]),
            cut_after_s=rng.choice([0.02, 0.08, 0.3]),
            straggle_probability=rng.choice([0.0, 0.0, 0.1]),
        )
        self.dies_at_the_end = rng.choice([0.0, 0.0, 0.3])
        self.transports: list[RefereedTransport] = []
        self.engine: Engine
        self.service: VerifierService

    # ---- the verifier

    def boot(self) -> None:
        target = TableTarget(
            self.model, limits=self.limits, num_blocks=self.num_blocks, block_size=4
        )
        clock = asyncio.get_running_loop().time
        config = EngineConfig(max_batch_tokens=self.budget, session_ttl_s=50.0)
        self.engine = Engine(target, config, clock)
        self.service = VerifierService(self.engine, self.compute, clock)
        self.running = asyncio.create_task(self.service.run())

    async def compute(self, step: Step, arrivals: Sequence[Arrival]) -> list[Departure]:
        """A pass takes virtual time; what it has to say is heard afterwards."""
        departures = step(arrivals)
        fixed, per_row = self.pass_s
        await asyncio.sleep(fixed + per_row * len(departures))
        return [(stream, self.last_word(stream, item)) for stream, item in departures]

    def last_word(
        self, stream: Stream, item: ServerFrame | DraftwireError
    ) -> ServerFrame | DraftwireError:
        """What reaches the stream: a verifier may die between its last verdict and the end."""
        if not isinstance(item, Finished) or self.rng.random() >= self.dies_at_the_end:
            return item
        session = stream.session
        assert session is not None
        if self.engine.idle.pop(session.id, None) is not None:
            self.engine.pool.release(session.kv)
        return LinkLost("the verifier died")

    async def halt(self) -> None:
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running

    async def restart(self) -> None:
        """The process dies with all its sessions and streams; another takes its place."""
        await self.halt()
        for transport in self.transports:
            await transport.close()
        self.boot()
        for transport in self.transports:
            transport.decode = self.service.decode

    def lose_session(self) -> None:
        held = [*self.engine.active.values(), *self.engine.idle.values()]
        if held:
            session = self.rng.choice(held)
            if session.stream is not None and session.id in self.engine.active:
                self.engine._fail(session.stream, SessionGone("lost"))
                self.service._arrive(Stream(closed=True), Detached())  # so that a step tells it
            self.engine.idle.pop(session.id, None)

    def evict(self) -> None:
        for session in self.engine.active.values():
            self.engine.pool.release(session.kv)
        self.engine.pool.expire(float("inf"), 0)

    async def misfortune(self) -> None:
        for _ in range(self.rng.randint(0, 6)):
            await asyncio.sleep(self.rng.uniform(0, 0.3))
            kind = self.rng.choice(["restart", "lose", "lose", "evict", "evict"])
            if kind == "restart":
                await self.restart()
            elif kind == "lose":
                self.lose_session()
            else:
                self.evict()

    # ---- the clients

    async def client(self, seed: int) -> None:
        rng = random.Random(seed)
        transport = RefereedTransport(
            self.service.decode, self.engine.card, self.faults, seed=rng.getrandbits(32)
        )
        self.transports.append(transport)
        drafter = TableDrafter(
            self.draft_model,
            draft_time_s=rng.choice([0.0003, 0.001, 0.004]),
            always_wrong=rng.random() < 0.1,
        )
        session = Session(
            transport,
            self.engine.card,
            fingerprint=self.engine.card.target.vocabulary_fingerprint,
            drafter=rng.choice([drafter, drafter, drafter, None]),
            retry=RETRY,
            clock=asyncio.get_running_loop().time,
        )
        for _ in range(rng.choice([1, 2, 3])):
            await self.turn(session, rng)

    async def turn(self, session: Session, rng: random.Random) -> None:
        prompt = session.tokens + [rng.randint(1, 5) for _ in range(rng.randint(1, 6))]
        if rng.random() < 0.1:
            prompt = prompt[rng.randint(0, len(prompt) - 1) :]  # a turn that forgets its beginning
        if len(prompt) >= self.limits.max_context:
            return
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 0.0, 0.9]),
            seed=rng.getrandbits(64),
            **rng.choice([{}, {}, self.penalties(rng)]),
        )
        max_tokens = rng.choice([1, 2, 7, 30, 60])
        stop = StopRules(
            max_tokens=max_tokens,
            min_tokens=rng.choice([0, 0, max_tokens // 2]),
            strings=rng.choice([(), (), self.stop_strings(rng)]),
        )
        grammar = None
        if self.engine.target.grammars is not None and rng.random() < 0.5:
            grammar = Grammar(kind="regex", text=rng.choice(GRAMMARS))
        request = prompt, sampling, stop, grammar
        reason = await self.say(session, rng, *request)
        if reason is FinishReason.CANCELLED and rng.random() < 0.5:
            await self.say(session, rng, *request)  # the same once more

    def penalties(self, rng: random.Random) -> dict[str, Any]:
        return {
            "repetition_penalty": rng.choice([1.0, 0.8, 1.5]),
            "presence_penalty": rng.choice([0.0, 1.5]),
            "frequency_penalty": rng.choice([0.0, -0.5, 0.7]),
            "logit_bias": rng.choice([{}, {1: 5.0, 2: -100.0}]),
        }

    def stop_strings(self, rng: random.Random) -> tuple[str, ...]:
        """Some that may come, beginning and ending anywhere in a token."""
        strings = []
        for _ in range(rng.choice([1, 3])):
            ids = [rng.randrange(1, self.model.vocabulary_size) for _ in range(rng.choice([1, 2]))]
            text = b"".join(map(self.words.piece, ids)).decode(errors="ignore")
            strings.append(text[rng.choice([0, 1]) : rng.choice([2, None])] or " the")
        return tuple(strings)

    async def say(
        self,
        session: Session,
        rng: random.Random,
        prompt: list[int],
        sampling: SamplingParams,
        stop: StopRules,
        grammar: Grammar | None,
    ) -> FinishReason:
        asked = rng.choice([0, 0, 1, 3])
        match = VerifyMode.MATCH
        mode = rng.choice([match, match, match, VerifyMode.REJECTION, VerifyMode.TYPICAL])
        drafter = session.drafter
        if rng.random() < 0.3:
            expected, _, _ = self.reference(prompt, sampling, stop, grammar)
            for _ in range(rng.choice([0, 1, 4])):
                expected.insert(rng.randint(0, len(expected)), rng.randint(1, 5))
            session.drafter = LookupDrafter(
                drafter, start=len(prompt), prediction=rng.choice([expected, []])
            )
        # Of a seed of their own, so that worlds are as they were without it.
        apart = random.Random(sampling.seed)
        has_model = isinstance(drafter, TableDrafter)
        generation = session.generate(
            prompt,
            RestlessController(rng),
            Request(
                sampling=sampling,
                stop=stop,
                logprobs=asked,
                mode=mode,
                grammar=grammar,
                offline_tokens=apart.choice([0, 0, 5, 50]) if has_model else 0,
                show_drafts=apart.random() < 0.3,
            ),
            self.matcher(grammar) if rng.random() < 0.7 else None,
        )
        cancelled = rng.random() < 0.2
        if cancelled:
            asyncio.get_running_loop().call_later(rng.uniform(0, 0.3), generation.cancel)
        leave_after = rng.choice([1, 3]) if rng.random() < 0.1 else None
        heard: list[int] = []
        output, tentative, shown = Output(self.words, stop), Tentative(), Shown()
        async with contextlib.aclosing(generation.run()) as commits:
            async for commit in commits:
                heard += [token for token, _ in commit]
                given = output.take(commit, generation.logprobs[output.committed :])
                drafts = output.preview(generation.tentative)
                for delta in tentative.change(given, drafts, Kind.DRAFTED):
                    shown.apply(delta)
                assert shown.final == output.text
                assert shown.tentative == "".join(token.text for token in drafts)
                if leave_after is not None and len(heard) >= leave_after:
                    break
        session.drafter = drafter
        finished = generation.finished
        assert finished is not None
        text = session.tokens[len(prompt) :]
        if leave_after is None:
            rest = output.end(len(text), told=finished.reason is not FinishReason.CANCELLED)
            for delta in tentative.change(rest, (), Kind.DRAFTED):
                shown.apply(delta)
            assert (shown.final, shown.tentative) == (output.text, "")
            assert shown.token_ids == [token.id for token in output.tokens]
        given = None if mode is match or sampling.greedy else heard
        if given is not None and leave_after is not None:  # it has not heard all of it
            return finished.reason
        whole, reason, words = self.reference(prompt, sampling, stop, grammar, given)
        if finished.reason is FinishReason.CANCELLED:
            assert cancelled or leave_after is not None
            assert text == whole[: len(text)] or stop.strings
            shown = [token.id for token in output.tokens]
            if shown != whole[: len(shown)]:  # its last ones may have begun a stop string
                unstopped, _, _ = self.reference(
                    prompt, sampling, replace(stop, strings=()), grammar, given
                )
                assert shown == unstopped[: len(shown)]
                _, reason, _ = self.reference(prompt, sampling, stop, grammar, shown)
                assert reason is FinishReason.CANCELLED
                whole = unstopped
        else:
            assert (text, finished.reason) == (whole, reason)
            assert leave_after is not None or output.text == words
        assert finished.usage.completion_tokens in (0, len(text))
        shared = min(len(heard), len(text))
        assert text[:shared] == heard[:shared]
        if leave_after is None:
            assert len(heard) == len(text) or stop.strings
            assert len(output.tokens) == min(len(text), len(whole))
        assert finished.length == len(session.tokens)
        self.check_logprobs(prompt, text if asked else [], generation.logprobs, asked)
        return finished.reason

    def check_logprobs(
        self, prompt: list[int], heard: list[int], told: list[TokenLogprobs], asked: int
    ) -> None:
        """They are the model's own, token for token."""
        state = self.model.state_of(prompt)
        assert len(told) == len(heard)
        for token, one in zip(heard, told, strict=True):
            expected = logprobs_of(self.model.logits(state), token, asked)
            assert one.logprob == pytest.approx(expected.logprob, abs=1e-4)
            assert list(one.top_tokens) == list(expected.top_tokens)
            state = self.model.extend(state, token)

    def reference(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        stop: StopRules,
        grammar: Grammar | None = None,
        given: list[int] | None = None,
    ) -> tuple[list[int], FinishReason, str]:
        """What the target alone writes: one token at a time, from the rule itself.

        Of a text that is `given`, because it is a draw, only where it ends.
        """
        model, state = self.model, self.model.state_of(prompt)
        ids = np.arange(model.vocabulary_size)
        text: list[int] = []
        while True:
            logits = self.penalised(model.logits(state), prompt, text, sampling)
            if len(text) < stop.min_tokens:
                logits[0] = -np.inf
            if (matcher := self.matcher(grammar)) is not None:
                matcher.extend(text)  # from the beginning, each time
                logits[~matcher.mask()] = -np.inf
            if sampling.temperature:
                scaled = logits / sampling.temperature
                logits = scaled + gumbel_at(sampling.seed, len(prompt) + len(text), ids)
            if given is not None and len(text) == len(given):
                return text, FinishReason.CANCELLED, self.written(text)
            choice = np.argmax(logits) if given is None else given[len(text)]
            assert np.isfinite(logits[choice])
            text.append(int(choice))
            state = model.extend(state, text[-1])
            if text[-1] == 0:
                return text, FinishReason.STOP, self.written(text)
            if len(text) > stop.min_tokens and stop.strings:
                searched = self.spelt(text[stop.min_tokens :])
                found = [searched.find(string.encode()) for string in stop.strings]
                if places := [at for at in found if at >= 0]:
                    kept = stop.min_tokens
                    while len(self.spelt(text[stop.min_tokens : kept + 1])) <= min(places):
                        kept += 1
                    before = self.spelt(text[: stop.min_tokens]) + searched[: min(places)]
                    return text[:kept], FinishReason.STOP, before.decode(errors="replace")
            if matcher is not None:
                matcher.extend(text[-1:])
                if matcher.complete:
                    return text, FinishReason.STOP, self.written(text)
            room = min(stop.max_tokens, self.limits.max_context - len(prompt))
            if len(text) >= room:
                return text, FinishReason.LENGTH, self.written(text)

    def matcher(self, grammar: Grammar | None) -> Any:
        compiler = table_grammars(self.model.vocabulary_size)
        return compiler.compile(grammar, (0,)) if grammar and compiler else None

    def spelt(self, tokens: list[int]) -> bytes:
        return b"".join(map(self.words.piece, tokens))

    def written(self, tokens: list[int]) -> str:
        return self.spelt(tokens).decode(errors="replace")

    def penalised(
        self, logits: np.ndarray, prompt: list[int], text: list[int], sampling: SamplingParams
    ) -> np.ndarray:
        out = logits.astype(np.float64)
        for token in {*prompt, *text}:
            factor = sampling.repetition_penalty
            out[token] *= 1 / factor if out[token] > 0 else factor
        for token in set(text):
            out[token] -= sampling.presence_penalty
            out[token] -= sampling.frequency_penalty * text.count(token)
        for token, bias in sampling.logit_bias.items():
            out[token] += bias
        return out

    # ---- all of it

    async def run(self) -> None:
        self.boot()
        rng = self.rng
        count = rng.choice([1, 1, 2, 3])
        clients = [asyncio.create_task(self.client(rng.getrandbits(64))) for _ in range(count)]
        if rng.random() < 0.5:
            clients.append(asyncio.create_task(self.misfortune()))
        try:
            await asyncio.gather(*clients)
        finally:
            for client in clients:
                client.cancel()
            await asyncio.wait(clients)
            for transport in self.transports:
                await transport.close()
        assert not [rule for transport in self.transports for rule in transport.broken_rules]
        await self.settle()
        await self.halt()

    async def settle(self) -> None:
        """When all have left, every session is idle and every block accounted for."""
        await asyncio.sleep(1.0)
        engine, pool = self.engine, self.engine.pool
        assert not engine.active
        assert pool.held == 0
        assert not any(session.kv.blocks for session in engine.idle.values())
        await asyncio.sleep(60.0)
        assert not engine.idle
        assert pool.free == pool.num_blocks


def run_world(seed: int) -> None:
    """Run one world to its end on virtual time. Raises whatever went wrong in it."""
    random.seed(seed)  # the pauses between retries
    run_virtual(World(seed).run(), timeout_s=3000)
