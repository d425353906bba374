"""What README and docs/ say that can be checked without running a model."""

from __future__ import annotations

import re
from pathlib import Path

import page_blocks
import pytest
from command_lines import parsed

import edge_client
from tools.site_pages import fitted

ROOT = Path(__file__).resolve().parents[2]
RUN = [ROOT / "README.md", ROOT / "docs/tutorial.md"]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    pytest.param(words, id=block.place)
    for page in PAGES
    for block in page_blocks.blocks(page)
    if block.language == "sh"
    for words in block.commands()
]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    blocks = page_blocks.blocks(page)
    fences = re.findall(r"^```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks)
    assert {block.language for block in blocks} <= {"python", "sh", "text"}
    assert any(block.language == "python" and not block.reason for block in blocks)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_on_a_page_is_one_that_the_command_takes(words: list[str]) -> None:
    assert parsed(words).command


def test_pages_hold_commands() -> None:
    assert len(COMMANDS) > 10


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: edge_client\.(\w+)$", page, re.MULTILINE))
    assert shown == set(edge_client.__all__)


@pytest.mark.parametrize(
    ("source", "link", "on_the_site"),
    [
        ("README.md", "[all](docs/cli.md)", "[all](cli.md)"),
        ("README.md", "[how](docs/operations.md#models)", "[how](operations.md#models)"),
        ("README.md", "[the loop](edge_client/session.py)", "the loop"),
        ("docs/operations.md", "[how](../SECURITY.md)", "[how](security.md)"),
        ("docs/operations.md", "[`a`](../deploy/prometheus/alerts.yml)", "`a`"),
        ("docs/operations.md", "[gone](../deploy/none.yml)", "[gone](../deploy/none.yml)"),
        ("docs/operations.md", "[here](#limits)", "[here](#limits)"),
        ("CHANGELOG.md", "[k](https://example.org/1/)", "[k](https://example.org/1/)"),
    ],
)
def test_links_lead_to_pages_of_the_site(source: str, link: str, on_the_site: str) -> None:
    assert fitted(link, source) == on_the_site
