"""What happens in a soak beside the links' faults: verifiers restart, apps are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence

from bench._app import Job, Order
from bench._known_text import KnownText
from bench._oracle import Oracle
from bench._soak_devices import Outcomes, compare
from bench._verifier import Verifier


async def restarting(
    verifier: Verifier, every_s: float, outcomes: Outcomes, over: Callable[[], bool]
) -> None:
    """Stop a verifier, SIGTERM and SIGKILL in turn, and start it again, until it is `over`."""
    ways = 0
    while not over():
        await asyncio.sleep(every_s)
        if ways % 2:
            await asyncio.to_thread(verifier.kill)
        elif status := await asyncio.to_thread(verifier.stop):
            outcomes.errors.append(f"a verifier told to stop exited with {status}")
        ways += 1
        outcomes.disturbed["restart"] += 1
        await asyncio.to_thread(verifier.start)


async def killing(
    verifiers: Sequence[str],
    oracle: Oracle,
    draft_model: str | None,
    seed: int,
    outcomes: Outcomes,
    over: Callable[[], bool],
) -> None:
    """Have an app generate text after text, and kill it again and again; it goes on each time."""
    draw = random.Random(seed)
    while not over():
        text, got = draw.choice(oracle.texts), list[int]()
        while len(got) < len(text.text):
            lives_s = draw.uniform(0.3, 1.5) if draw.random() < 0.7 else None
            if not await _live(job_of(verifiers, text, got), draft_model, lives_s, got, outcomes):
                return
        compare(oracle, text, text.text, got, outcomes)
        outcomes.tokens += len(got)
        outcomes.ends["finish"] += 1


def job_of(verifiers: Sequence[str], text: KnownText, got: Sequence[int]) -> Job:
    """To go on with a text of which `got` is there, slowly enough to be killed in the middle."""
    return Job(
        number=0,
        addresses=verifiers,
        prompt=text.prompt,
        text=[*got, *text.text[len(got) :]],
        done=len(got),
        temperature=text.sampling.temperature,
        seed=text.sampling.seed,
        num_draft_tokens=None,
        pause_s=0.05,
    )


async def _live(
    job: Job, draft_model: str | None, lives_s: float | None, got: list[int], outcomes: Outcomes
) -> bool:
    """One process that does the job, adding to `got`; false if it failed by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench._app", stdin=PIPE, stdout=PIPE
    )
    loop = asyncio.get_running_loop()
    death = None if lives_s is None else loop.call_later(lives_s, _kill, process)
    output, _ = await process.communicate(Order(model=draft_model, jobs=[job]).dumps())
    if death is not None:
        death.cancel()
    for line in output.decode().splitlines(keepends=True):
        if line.endswith("\n"):
            said = json.loads(line)
            got += said.get("tokens", ())
            if said.get("left"):
                outcomes.errors.append(f"an app is left with {said['left']}")
    killed = process.returncode == -signal.SIGKILL
    outcomes.disturbed["app killed"] += killed
    if process.returncode and not killed:
        outcomes.errors.append(f"an app exited with {process.returncode}")
    return killed or not process.returncode


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
