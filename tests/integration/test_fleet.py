"""The engine benchmark's devices."""

from __future__ import annotations

import random

import pytest

from bench import _fleet
from bench._fleet import Fleet
from bench._scripts import Script, wrong_at
from cloud_verifier.engine import EngineConfig
from cloud_verifier.table_target import TableTarget
from draftwire.testing.table import TableModel

MODEL = TableModel(vocabulary_size=320, states=4096)


@pytest.mark.parametrize("budget", [21, 33, 66])
def test_a_verdict_on_a_part_of_the_drafts_leaves_the_rest_to_the_next_pass(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(_fleet, "EngineConfig", lambda: EngineConfig(max_batch_tokens=budget))
    draw = random.Random(1)
    prompts = [tuple(draw.randrange(1, 320) for _ in range(64)) for _ in range(16)]
    scripts = [Script(prompt, tuple(MODEL.generate(prompt, 199)), 1.0) for prompt in prompts]
    target, few = TableTarget(MODEL, num_blocks=400), wrong_at(0.1)
    fleet = Fleet(target, scripts, k=4, wrong=few, num_blocks=68, think_s=0.002)
    fleet.finish()  # which asserts each text
    assert fleet.committed == 16 * 199
