"""Split texts held against what the target says alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench._prompts import Prompt
from bench._reference import Best, Reference
from bench._tap import Tap
from draftwire.testing.link import LinkEmulator, LinkProfile
from draftwire.types import SamplingParams, common_prefix
from edge_client.client import AsyncEdgeClient
from edge_client.drafter import Tokenizer
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.results import Summary
from edge_client.text import TextStream
from edge_client.transport import GrpcTransport

TIE = 1e-4


@dataclass(frozen=True, slots=True)
class Case:
    """One text to generate."""

    prompt: Prompt
    sampling: SamplingParams
    num_draft_tokens: int | None
    rtt_ms: float

    @property
    def text(self) -> tuple[Prompt, float, int]:
        """What decides the text, and nothing else does."""
        return self.prompt, self.sampling.temperature, self.sampling.seed

    def __str__(self) -> str:
        sampling = "greedy" if self.sampling.greedy else f"T={self.sampling.temperature:g}"
        k = "adaptive" if self.num_draft_tokens is None else str(self.num_draft_tokens)
        return f"{self.prompt.name}, {sampling}, K {k}, RTT {self.rtt_ms:g} ms"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text first leaves the target's own; `tie` excuses it."""

    case: str
    index: int
    split: int | None
    reference: int | None
    margin: float | None
    tie: bool

    def __str__(self) -> str:
        kind = "tie, excused" if self.tie else "DIFFERENT"
        margin = "" if self.margin is None else f"; best two scores {self.margin:.2e} apart"
        return (
            f"{kind}: {self.case}, token {self.index}: split {self.split}, "
            f"target alone {self.reference}{margin}"
        )


@dataclass(slots=True)
class Report:
    """What was compared and what came of it. `smallest_margin` is over the texts alone."""

    runs: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    smallest_margin: float = float("inf")
    passes: int = 0
    sessions_per_pass: float = 0.0
    mixed_k: float = 0.0
    differences: list[Difference] = field(default_factory=list)

    @property
    def failures(self) -> list[Difference]:
        """Differences that nothing excuses."""
        return [difference for difference in self.differences if not difference.tie]

    def __str__(self) -> str:
        ties = len(self.differences) - len(self.failures)
        return (
            f"{self.runs} runs, {self.tokens} tokens: {len(self.failures)} differences, "
            f"{ties} ties excused\n"
            f"{self.accepted} of {self.drafted} drafts accepted; {self.passes} passes of "
            f"{self.sessions_per_pass:.1f} sessions, {self.mixed_k:.0%} of them mixed K\n"
            f"best two scores of the target alone at least {self.smallest_margin:.2e} apart"
        )


class Comparison:
    """Runs cases split and compares each with the target alone.

    `tokens` is the length of the texts, `tie` how near two scores must be to count as equal.
    """

    def __init__(
        self,
        reference: Reference,
        model: LlamaModel,
        *,
        tokens: int,
        tie: float = TIE,
        say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
    ) -> None:
        self.report = Report()
        self._reference = reference
        self._model = model
        self._tokens = tokens
        self._tie = tie
        self._say = say
        self._alone: dict[tuple[Prompt, float, int], list[Best]] = {}
        self._passes = self._sessions = self._mixed = 0

    def prepare(self, cases: Sequence[Case]) -> None:
        """Ask the target alone; best done while nothing else wants the processor."""
        todo = {case.text: case for case in cases}
        for index, (key, case) in enumerate(todo.items()):
            ids, ends = case.prompt.tokens(self._model.tokenizer), case.prompt.ends
            text = self._reference.text(ids, case.sampling, self._tokens, ends=ends)
            self._alone[key] = text
            smallest = min(best.margin for best in text)
            self.report.smallest_margin = min(self.report.smallest_margin, smallest)
            self._say(f"target alone: {index + 1} of {len(todo)} texts")

    async def run(self, address: str, cases: Sequence[Case], *, at_once: int) -> None:
        """Run the cases side by side at one address and compare them."""
        cases = list(cases)
        random.Random(0).shuffle(cases)
        tap = Tap(GrpcTransport(address))
        drafters = [LlamaDrafter(self._model, threads=1, context=2048) for _ in range(at_once)]
        async with AsyncEdgeClient(tap, self._model.tokenizer, drafters) as client:
            queue, lengths = iter(cases), dict[bytes, int | None]()
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(self._work(client, queue, lengths))
        self._passes += len(tap.passes)
        self._sessions += sum(len(p.sessions) for p in tap.passes)
        self._mixed += sum(len({lengths[s] for s in p.sessions}) > 1 for p in tap.passes)
        self.report.passes = self._passes
        self.report.sessions_per_pass = self._sessions / max(1, self._passes)
        self.report.mixed_k = self._mixed / max(1, self._passes)

    async def _work(
        self, client: AsyncEdgeClient, cases: Iterator[Case], lengths: dict[bytes, int | None]
    ) -> None:
        for case in cases:
            session = await client.session()
            lengths[session.id] = case.num_draft_tokens
            stream = client.generate(
                case.prompt.tokens(client.tokenizer),
                session=session,
                temperature=case.sampling.temperature,
                seed=case.sampling.seed,
                max_tokens=self._tokens,
                ignore_eos=not case.prompt.ends,
                num_draft_tokens=case.num_draft_tokens,
            )
            text = await stream.read()
            self._take(case, text, stream.summary)

    def _take(self, case: Case, text: str, summary: Summary) -> None:
        report, got = self.report, list(summary.token_ids)
        report.runs += 1
        report.tokens += len(got)
        report.drafted += summary.drafted
        report.accepted += summary.accepted
        differences = list(self.compare(case, got))
        if not differences and text != decoded(self._model.tokenizer, got):
            differences.append(Difference(f"{case} (text only)", len(got), None, None, None, False))
        report.differences += differences
        for difference in differences:
            self._say(str(difference))
        self._say(f"split: {report.runs} texts, {len(report.failures)} differences")

    def compare(self, case: Case, got: list[int]) -> Iterator[Difference]:
        """The ties that tokens `got` hold, and the first difference that is none."""
        prompt, ends = case.prompt.tokens(self._model.tokenizer), case.prompt.ends
        expected = [best.first for best in self._alone[case.text]]
        while (at := common_prefix(got, expected)) < max(len(got), len(expected)):
            split = got[at] if at < len(got) else None
            alone = expected[at] if at < len(expected) else None
            best = self._reference.best([*prompt, *got[:at]], case.sampling)
            tie = {split, alone} == {best.first, best.second} and best.margin <= self._tie
            yield Difference(str(case), at, split, alone, best.margin, tie)
            if not tie:
                return
            expected = got[: at + 1]
            if len(expected) < self._tokens and not (ends and self._reference.ended_by(got[at])):
                rest = self._reference.text(
                    [*prompt, *expected], case.sampling, self._tokens - len(expected), ends=ends
                )
                expected += [best.first for best in rest]


def decoded(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of all tokens taken at once."""
    stream = TextStream(tokenizer)
    return stream.feed(tokens) + stream.flush()


async def run_links(
    comparison: Comparison, verifier: str, cases: Sequence[Case], *, at_once: int
) -> None:
    """Run the cases against a verifier, one round trip after the other."""
    for rtt_ms in sorted({case.rtt_ms for case in cases}):
        same = [case for case in cases if case.rtt_ms == rtt_ms]
        with ExitStack() as stack:
            address = verifier
            if rtt_ms > 0:
                link = LinkEmulator.in_thread(verifier, LinkProfile(rtt_ms=rtt_ms))
                address = stack.enter_context(link).address
            await comparison.run(address, same, at_once=at_once)
