"""Generations to which things happen: what `make bench-faults` does to hundreds, to a few."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")
pytest.importorskip("prometheus_client", reason="needs the cloud extra")

from bench._fault_plan import difference, plan
from bench._oracle import TableOracle
from bench.faults import TABLE_TOKENS, Campaign, serving


@pytest.mark.slow
def test_what_goes_wrong_costs_no_token_and_leaves_nothing_behind() -> None:
    oracle = TableOracle(tokens=TABLE_TOKENS, count=40)
    with serving(oracle.model) as verifier:
        campaign = Campaign(verifier, oracle, None, limit_s=60.0)
        asyncio.run(campaign.run(40, seed=1))
    tally = campaign.tally
    assert tally.problems == []
    assert tally.tokens == 40 * TABLE_TOKENS
    assert min(tally.struck.values()) > 0
    assert verifier.restarts > 0
    assert tally.streams > tally.generations


def test_a_seed_says_what_happens_to_whom_and_when() -> None:
    texts = TableOracle(tokens=20, count=5).texts
    assert plan(7, texts) == plan(7, texts)
    assert plan(7, texts) != plan(8, texts)


@pytest.mark.parametrize(
    ("got", "told"),
    [
        ([1, 2, 3, 4, 5], None),
        ([1, 2, 4, 5], "1 lost before token 2"),
        ([1, 2, 2, 3, 4, 5], "1 repeated before token 2"),
        ([1, 2, 3, 1, 2, 3, 4, 5], "3 repeated before token 3"),
        ([1, 2, 9, 4, 5], "token 2 is 9 instead of 3"),
        ([1, 2, 3], "3 tokens instead of 5"),
        ([1, 2, 3, 4, 5, 6], "6 tokens instead of 5"),
    ],
)
def test_a_text_that_differs_is_told_from_one_that_does_not(
    got: list[int], told: str | None
) -> None:
    assert difference([1, 2, 3, 4, 5], got) == told
