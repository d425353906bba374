"""How many threads a draft model is given where nobody says."""

from __future__ import annotations

import os

from edge_client.drafters.threaded import default_threads


def test_at_most_four_and_half_of_the_cores_beside_a_verifier() -> None:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert available
    assert default_threads() == min(available, 4)
    assert default_threads(beside_verifier=True) == max(1, min(available // 2, 4))
