"""How many threads a draft model is given where nobody says."""

from __future__ import annotations

import os

import pytest

from draftwire.errors import InvalidRequest
from edge_client.drafters.threaded import default_threads
from edge_client.failover import runs_here


def test_at_most_four_and_half_of_the_cores_beside_a_verifier() -> None:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert available
    assert default_threads() == min(available, 4)
    assert default_threads(beside_verifier=True) == max(1, min(available // 2, 4))


def test_one_verifier_of_several_on_this_machine_shares_its_cores() -> None:
    assert runs_here("gpu.example.net:7433, 127.0.0.1:7433")
    assert runs_here("localhost:7433")
    assert not runs_here("gpu.example.net:7433,192.0.2.1:7433")
    with pytest.raises(InvalidRequest, match="no address"):
        runs_here("gpu.example.net:7433,")
