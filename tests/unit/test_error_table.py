"""docs/operations.md tells users and operators of every error there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from draftwire.errors import BY_CODE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
ROW = re.compile(r"^\| `([A-Z_]+)` \| (\w+) \| (yes|no) \| (.+) \| (.+) \|$", re.MULTILINE)
ROWS = {row[0]: row[1:] for row in ROW.findall(PAGE.read_text(encoding="utf-8"))}


def test_every_code_has_a_row_and_every_row_a_code() -> None:
    assert list(ROWS) == list(BY_CODE)


@pytest.mark.parametrize("code", BY_CODE)
def test_a_row_states_the_status_and_whether_a_retry_helps(code: str) -> None:
    status, again, _, _ = ROWS[code]
    assert status == BY_CODE[code].status
    assert (again == "yes") == BY_CODE[code].retryable
