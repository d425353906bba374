"""An endpoint over a table model, for a module of tests, and OpenAI's client of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def served() -> Iterator[Any]:
    from endpoint_world import mostly_right, world

    with world([mostly_right()]) as served:
        yield served


@pytest.fixture(scope="module")
def openai(served: Any) -> Iterator[Any]:
    with served.openai() as client:
        yield client
