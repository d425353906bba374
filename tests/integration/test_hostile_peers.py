"""Hostile peers leave those who behave their speed: `bench/hostile.py`, for a few seconds."""

from __future__ import annotations

import pytest

from bench import hostile


@pytest.mark.slow
@pytest.mark.parametrize("attack", hostile.NAMES)
def test_well_behaved_sessions_keep_four_fifths_of_their_speed(attack: str) -> None:
    assert hostile.main(["--attacks", attack, "--seconds", "1", "--check"]) == 0
