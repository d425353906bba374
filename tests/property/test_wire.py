"""The wire rules hold whatever happens: real sessions, service and engine, a toy model, faults."""

from __future__ import annotations

import pytest
from wire_world import run_world


@pytest.mark.parametrize("twenty", range(2))
def test_text_is_the_targets_own_in_random_worlds(twenty: int) -> None:
    for seed in range(20 * twenty, 20 * (twenty + 1)):
        run_world(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(10, 20))
def test_text_is_the_targets_own_in_hundreds_of_random_worlds(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * (hundred + 1)):
        run_world(seed)
