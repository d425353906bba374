"""Some generations on one verifier, all at once, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import psutil  # type: ignore[import-untyped]

from bench._app import Job, Order
from bench._fault_plan import FAULTS, Fault, Generation, difference
from bench._oracle import Oracle
from bench._verifier import Verifier
from bench._vitals import Held
from draftwire.testing.link import LinkEmulator
from draftwire.types import common_prefix

TRICKLE_MBIT_S = 0.008
SETTLE_S = 10.0


@dataclass(slots=True)
class Tally:
    """What has come of all rounds so far. `struck` faults befell generations in flight."""

    generations: int = 0
    tokens: int = 0
    streams: int = 0
    ties: int = 0
    struck: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FAULTS, 0)))
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        struck = ", ".join(f"{count} {kind}" for kind, count in self.struck.items())
        return (
            f"{self.generations} generations, {self.tokens} tokens, {self.streams} streams "
            f"({self.ties} ties excused)\n{self.struck.total()} faults in mid-generation: {struck}"
        )


class Round:
    """Runs a plan. `before` is what the verifier held when nobody had used it for a while."""

    def __init__(
        self,
        verifier: Verifier,
        oracle: Oracle,
        shares: Sequence[Sequence[Generation]],
        tally: Tally,
        *,
        draft_model: str | None,
        limit_s: float,
        ttl_s: float,
    ) -> None:
        self._verifier = verifier
        self._oracle = oracle
        self._shares = shares
        self._tally = tally
        self._draft_model = draft_model
        self._limit_s = limit_s
        self._ttl_s = ttl_s
        self._links: dict[int, LinkEmulator] = {}
        self._apps: dict[int, Process] = {}  # by generation
        self._killed: dict[int, str] = {}  # by process id: the fault
        self._restarting = asyncio.Lock()

    async def run(self, before: Held | None) -> Held:
        """Run it and add what came of it to the tally; what the verifier holds afterwards."""
        own = Held.now()
        generations = [generation for share in self._shares for generation in share]
        try:
            async with asyncio.timeout(self._limit_s), contextlib.AsyncExitStack() as stack:
                for one in generations:
                    link = LinkEmulator(self._verifier.address, one.profile, seed=one.number)
                    self._links[one.number] = await stack.enter_async_context(link)
                async with asyncio.TaskGroup() as self._group:
                    for share in self._shares:
                        self._group.create_task(self._app(share))
        except TimeoutError:
            self._problem(f"not done in {self._limit_s:.0f} s")
        for one in generations:
            self._judge(one)
        more = Held.now().beyond(own)
        more.pop("threads", None)  # those of the loop's own executor stay
        if more:
            self._problem(f"the links left {more}")
        return await self._left(before)

    async def _app(self, share: Sequence[Generation]) -> None:
        """Have an app generate its share, in as many processes as it takes."""
        while todo := [one for one in share if one.in_flight]:
            order = Order(model=self._draft_model, jobs=[self._job(one) for one in todo])
            command = (sys.executable, "-m", "bench._app")
            process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
            try:
                for one in todo:
                    self._apps[one.number] = process
                    self._strike_due(one)
                await self._listen(process, order, {one.number: one for one in todo})
                status = await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            fault = self._killed.pop(process.pid, None)
            if fault is None:
                if status or any(one.in_flight for one in todo):
                    self._problem(f"an app ended with status {status}")
                return
            if fault == "forget app":
                for one in todo:
                    self._forget(one)

    def _job(self, one: Generation) -> Job:
        text = one.text
        return Job(
            number=one.number,
            addresses=[self._links[one.number].address],
            prompt=text.prompt,
            # What has come is gone on with, right or wrong.
            text=[*one.got, *text.text[len(one.got) :]],
            done=len(one.got),
            temperature=text.sampling.temperature,
            seed=text.sampling.seed,
            num_draft_tokens=one.num_draft_tokens,
            pause_s=one.pause_s,
        )

    async def _listen(
        self, process: Process, order: Order, generations: dict[int, Generation]
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):  # killed already
            process.stdin.write(order.dumps())
            await process.stdin.drain()
            process.stdin.close()
            await process.stdin.wait_closed()
        while (line := await process.stdout.readline()).endswith(b"\n"):
            said = json.loads(line)
            if "left" in said:
                if said["left"]:
                    self._problem(f"an app is left with {said['left']}")
                continue
            one = generations[said["job"]]
            if "tokens" in said:
                one.got += said["tokens"]
                self._strike_due(one)
            else:
                one.ended = True
                one.streams = said["ended"]["streams"]
                self._tally.streams += one.streams
                if said["ended"]["reason"] != "length":
                    self._problem(f"{one} ended by {said['ended']['reason']}")

    def _forget(self, one: Generation) -> None:
        self._compare(one, one.text.text[: len(one.got)])
        if one.in_flight:
            one.got.clear()

    # ------------------------------------------------------------------ faults

    def _strike_due(self, one: Generation) -> None:
        for fault in one.due():
            if one.in_flight:
                self._group.create_task(self._strike(one, fault))

    async def _strike(self, one: Generation, fault: Fault) -> None:
        link, process, kind = self._links[one.number], self._apps[one.number], fault.kind
        while not link.bytes_up and process.returncode is None:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.002)  # of what has not begun nothing can be cut
        if not one.in_flight or process.returncode is not None:
            return
        self._tally.struck[kind] += 1
        one.befell.append(fault)
        if kind == "cut":
            link.cut()
        elif kind == "outage":
            link.cut(refuse_s=fault.seconds)
        elif kind in ("stall", "deaf", "mute"):
            await link.stall(fault.seconds, up=kind != "deaf", down=kind != "mute")
        elif kind == "trickle":
            link.set_profile(replace(one.profile, mbit_s=TRICKLE_MBIT_S))
            await asyncio.sleep(3 * fault.seconds)
            link.set_profile(one.profile)
        elif kind == "freeze app":
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        elif kind in ("kill app", "forget app"):
            self._killed[process.pid] = kind
            process.kill()
        elif not self._restarting.locked():
            async with self._restarting:
                await self._strike_verifier(fault)

    async def _strike_verifier(self, fault: Fault) -> None:
        if fault.kind == "freeze verifier":
            self._verifier.signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            self._verifier.signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(self._verifier.kill)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(self._verifier.start)

    # ------------------------------------------------------------------ judgement

    def _judge(self, one: Generation) -> None:
        self._tally.generations += 1
        self._tally.tokens += len(one.got)
        self._compare(one, one.text.text)

    def _compare(self, one: Generation, expected: Sequence[int]) -> None:
        place = common_prefix(one.got, expected)
        both = place < min(len(one.got), len(expected))
        if both and self._oracle.tie(one.text, place, one.got[place]):
            self._tally.ties += 1  # and what follows is another text
            return
        if found := difference(expected, one.got):
            self._problem(f"{one}: {found}")

    def _problem(self, text: str) -> None:
        self._tally.problems.append(text)

    async def _left(self, before: Held | None) -> Held:
        """Wait until the verifier has forgotten everyone."""
        left = await asyncio.to_thread(self._verifier.left, within_s=self._ttl_s + SETTLE_S)
        if left:
            self._problem(f"the verifier is left with {left}")
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while True:
            held = await asyncio.to_thread(self._verifier.held)
            more = held.beyond(before) if before is not None else {}
            if not more or asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.05)
        if more:
            self._problem(f"the verifier is left with {more} more than at first")
        children = {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}
        if strangers := children - {self._verifier.pid}:
            self._problem(f"processes are left: {sorted(strangers)}")
        return held
