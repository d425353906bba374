"""`draftwire translate` on the demo pair, and each update against translating it afresh."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

from edge_client.client import AsyncEdgeClient
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.translation_prompt import TranslationPrompt
from edge_client.translation_results import TranslationUpdate

pytestmark = [pytest.mark.models, pytest.mark.slow]

TEMPLATE = """\
Correct the spelling and punctuation of this sentence. Answer with the sentence only.

{source}"""
"""What so small a model can do; for a translation it stands well enough."""

CAPTIONS = [
    "nobody was hurt because",
    "nobody was hurt because the bells rang",
    "nobody was hurt because the belts of the church",
    "nobody was hurt because the bells of the church rang for two hours",
]


def test_each_update_is_what_translating_it_afresh_gives_in_fewer_passes(
    runner: asyncio.Runner, model: LlamaModel, verifier: str
) -> None:
    events: list[TranslationUpdate] = []
    prompt = TranslationPrompt("en", template=TEMPLATE)

    async def run() -> int:
        drafter = LlamaDrafter(model, threads=1, context=1024)
        async with AsyncEdgeClient(verifier, model.tokenizer, [drafter]) as client:
            async with client.translate(
                "en", template=TEMPLATE, num_draft_tokens=8, shown=events.append
            ) as translator:
                for caption in CAPTIONS:
                    translator.update(caption)
                    await translator.settled()
                translator.commit()
            alone = 0
            settled = [event for event in events if event.settled and not event.final]
            for event, caption in zip(settled, CAPTIONS, strict=True):
                message = {"role": "user", "content": prompt.message(caption)}
                stream = client.generate(messages=[message], stop="\n", num_draft_tokens=0)
                await stream.read()
                assert stream.summary.token_ids == event.token_ids
                alone += stream.summary.usage.passes
            assert translator.report.lines == 1
            return alone - 3 * translator.report.passes

    assert runner.run(run()) > 0


def test_the_command_follows_its_input(verifier: str) -> None:
    """Piped, final lines only; as JSON every change, and stability says that it is lossy."""
    command = [sys.executable, "-m", "edge_client", "translate", "--to", "fr", "--threads", "1"]
    command += ["--verifier", verifier, "--max-tokens", "24", "--final-marker", "#"]
    text = "Good morning\nGood morning everyone#\n\nThank you\n"
    plain, changes = (
        subprocess.run(
            [*command, *more], input=text, capture_output=True, text=True, timeout=120, check=True
        )
        for more in ((), ("--json", "--stability", "1", "--hold-back", "1"))
    )
    events = [json.loads(line) for line in changes.stdout.splitlines()]
    final = [event for event in events if event["final"]]
    assert [event["source"] for event in final] == ["Good morning everyone", "Thank you"]
    assert len(plain.stdout.splitlines()) == 2
    assert "2 lines" in plain.stderr
    assert "lossy" not in plain.stderr
    assert "lossy" in changes.stderr
