"""A draft model that hangs for seconds on its thread; real gRPC, and a verifier with a pace."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from table_client import MODEL, Words, on_a_loop

from cloud_verifier.engine import Engine
from cloud_verifier.server import VerifierServer
from cloud_verifier.table_target import TableTarget
from cloud_verifier.target import Judgement, Row
from draftwire.types import ServingLimits
from edge_client import AsyncEdgeClient
from edge_client.branch import Origin
from edge_client.drafters.threaded import Logits, ThreadedDrafter

pytestmark = pytest.mark.slow

HANG_S, PASS_S, DRAFT_S = 3.0, 0.02, 0.002
TOKENS = 400


class SlowTarget(TableTarget):
    """Takes its time for a pass."""

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        time.sleep(PASS_S)
        return super().verify(rows)


class HangingContext:
    """A draft model's context: sleeps for a draft, and once for long. `hung` says from when on."""

    def __init__(self, after: int) -> None:
        self.tokens: list[int] = []
        self.hung = 0.0
        self.closed = False
        self._left = after
        self._model = MODEL.perturbed(0.05, seed=1)

    def truncate(self, keep: int) -> None:
        del self.tokens[keep:]

    def logits(self, abandoned: Callable[[], bool] = lambda: False) -> Logits:  # noqa: ARG002
        self._left -= 1
        if self._left == 0:
            self.hung = time.monotonic()
        time.sleep(DRAFT_S if self._left else HANG_S)
        return np.array(self._model.logits(self._model.state_of(self.tokens)))

    def close(self) -> None:
        self.closed = True


def drafter_in(context: HangingContext, kept: list[int]) -> ThreadedDrafter:
    return ThreadedDrafter(
        lambda: context,
        vocabulary_size=MODEL.vocabulary_size,
        max_context=4096,
        retain=lambda: kept.append(1),
        release=kept.clear,
    )


@pytest.mark.parametrize(
    ("client_options", "options", "pause_s"),
    [
        ({}, {}, 0.5),
        ({"objective": "cost"}, {}, 0.5),
        ({}, {"prompt_lookup": True}, 0.5),
        ({}, {"num_draft_tokens": 4}, 1.5),
    ],
    ids=["latency", "cost", "looked up", "rounds of four"],
)
def test_a_drafter_that_hangs_does_not_hold_the_stream(
    client_options: dict[str, Any], options: dict[str, Any], pause_s: float
) -> None:
    context, kept = HangingContext(after=60), list[int]()

    @on_a_loop
    async def run() -> None:
        target = SlowTarget(MODEL, limits=ServingLimits(max_context=2048), num_blocks=256)
        drafters = [drafter_in(context, kept)]
        async with (
            VerifierServer(Engine(target), "127.0.0.1:0", grace_s=0.0) as server,
            AsyncEdgeClient(server.address, Words(), drafters, **client_options) as client,
        ):
            came: list[tuple[float, int, Origin]] = []
            async for delta in client.generate(
                [5, 6, 7], max_tokens=TOKENS, ignore_eos=True, **options
            ):
                now = time.monotonic()
                came += [(now, token.id, token.origin) for token in delta.tokens]
        assert [token for _, token, _ in came] == MODEL.generate([5, 6, 7], TOKENS)
        began, over = context.hung, context.hung + HANG_S
        times = [at for at, _, _ in came]
        assert max(b - a for a, b in itertools.pairwise(times)) < pause_s
        meanwhile = [origin for at, _, origin in came if began + pause_s < at < over]
        assert len(meanwhile) > 0.5 * (HANG_S - pause_s) / PASS_S
        assert set(meanwhile) == {Origin.CLOUD}
        afterwards = [origin for at, _, origin in came if at > over]
        assert afterwards.count(Origin.ACCEPTED) > 0.4 * len(afterwards) > 10
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run()
    assert context.closed
    assert not kept
    assert "drafter" not in {thread.name for thread in threading.enumerate()}
