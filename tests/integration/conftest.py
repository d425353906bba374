"""The demo pair, for the tests that run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from draftwire.testing.demo import demo_model_path
from edge_client.verifier_process import VerifierProcess

if TYPE_CHECKING:
    from edge_client.drafters.llama import LlamaModel

SERVE = ("--threads", "1", "--kv-tokens", "8192", "--max-sessions", "16")


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:  # gRPC wants one loop per process
        yield runner


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    from edge_client.drafters.llama import LlamaModel

    loaded = LlamaModel.load(demo_model_path())
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def verifier() -> Iterator[str]:
    with VerifierProcess(["--model", str(demo_model_path()), *SERVE]) as process:
        yield process.address
