"""What the faster linear layers keep in memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PASSES = """
import psutil, torch
from torch import nn
from cloud_verifier import cpu_linear

torch.set_num_threads(1)
layers = nn.Sequential(nn.Linear(576, 1536), nn.Linear(1536, 576))
installed = cpu_linear.install(layers)
with torch.inference_mode():
    layers(torch.zeros(300, 576))
    before = psutil.Process().memory_info().rss
    for rows in range(1, 257):
        layers(torch.zeros(rows, 576))
print(installed, psutil.Process().memory_info().rss - before)
"""


@pytest.mark.slow
def test_passes_of_many_sizes_leave_no_memory_taken() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PASSES], capture_output=True, text=True, check=True
    )
    installed, grown = map(int, done.stdout.split())
    if not installed:
        pytest.skip("this build of torch has no oneDNN")
    assert grown < 200e6  # 370 MB where every size is kept
