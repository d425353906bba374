"""How many passes of the target a translation takes that follows live captions.

The captions (bench/captions.txt, some two and a half minutes of speech as lines that grow, with
corrections in the middle) are translated update by update, as fast as it goes: what counts is
passes, not seconds. So tasks, ways and updates that don't build on one another run side by side,
in batched passes, of which each counts those that it took part in. Ways:

  alone      each update afresh by the cloud alone, a pass a token
  afresh     each update afresh, split, with --k drafts a round
  predicted  with the translation before as the prediction, and no draft model
  followed   as `draftwire translate` does it: the prediction, and drafts where it does not hold

Two tasks. A model as small as the demo's is no translator: into French it begins nearly every
update anew, so that little can be kept. `corrected` has it put the captions into correct English,
which it can: the text follows the source with changes at its end, as a good translation does.

The tokens of each update must be the same in all ways. With --check others fail, and so do fewer
than --limit times fewer passes followed than alone, in either task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
from pathlib import Path
from typing import Any

from draftwire.testing.demo import demo_model_path
from edge_client.client import AsyncEdgeClient
from edge_client.drafters.llama import LlamaDrafter, LlamaModel
from edge_client.translation_command import captions
from edge_client.translation_prompt import DEFAULT_TEMPLATE, TranslationPrompt
from edge_client.translation_results import TranslationReport, TranslationUpdate
from edge_client.verifier_process import VerifierProcess

CAPTIONS = Path(__file__).with_name("captions.txt")

TASKS = {
    "French": ("fr", DEFAULT_TEMPLATE),
    "corrected": (
        "en",
        """\
Correct the spelling and punctuation of this sentence. Answer with the sentence only.

{source}""",
    ),
}

WAYS = ("alone", "afresh", "predicted", "followed")

AT_ONCE, DRAFTERS = 8, 2  # generations of a task's way "alone"; those that draft


async def follow(
    client: AsyncEdgeClient, task: str, arguments: argparse.Namespace, **options: Any
) -> tuple[list[TranslationUpdate], TranslationReport]:
    """Each caption's translation, when the one before has settled, and the report."""
    settled: list[TranslationUpdate] = []

    def keep(shown: TranslationUpdate) -> None:
        if shown.settled and not shown.final:
            settled.append(shown)

    to, template = TASKS[task]
    options |= {"template": template, "max_tokens": arguments.tokens}
    lines = 0
    async with client.translate(to, shown=keep, **options) as translator:
        for text, final in captions(arguments.captions.read_text("utf-8").splitlines()):
            translator.update(text)
            await translator.settled()
            if final:
                translator.commit()
                lines += 1
                if lines == arguments.lines:
                    break
        translator.commit()
        await translator.settled()
        return settled, translator.report


async def measure(
    bare: AsyncEdgeClient, client: AsyncEdgeClient, task: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Passes of each way, tokens, flicker, and how many texts differ."""
    (settled, report), (predicted, bare_report) = await asyncio.gather(
        follow(client, task, arguments, num_draft_tokens=arguments.k),
        follow(bare, task, arguments),
    )
    passes = {"alone": 0, "afresh": 0}
    passes |= {"predicted": bare_report.passes, "followed": report.passes}
    different = sum(a.token_ids != b.token_ids for a, b in zip(settled, predicted, strict=True))
    to, template = TASKS[task]
    prompt = TranslationPrompt(to, template=template)
    room = asyncio.Semaphore(AT_ONCE)

    async def again(shown: TranslationUpdate, way: str) -> None:
        nonlocal different
        messages = [{"role": "user", "content": prompt.message(shown.source)}]
        options: dict[str, Any] = {"stop": "\n", "max_tokens": arguments.tokens}
        if way == "alone":
            async with room:
                stream = bare.generate(messages=messages, num_draft_tokens=0, **options)
                await stream.read()
        else:  # the client has as many at work as it has drafters
            stream = client.generate(messages=messages, num_draft_tokens=arguments.k, **options)
            await stream.read()
        passes[way] += stream.summary.usage.passes
        different += stream.summary.token_ids != shown.token_ids

    await asyncio.gather(*(again(shown, way) for way in ("alone", "afresh") for shown in settled))
    if arguments.show:
        print(f"{task}:")
        for shown in settled:
            print(f"  {shown.passes:3}  {shown.source}\n       {shown.translation}", flush=True)
    return {
        "updates": report.updates,
        "lines": report.lines,
        "tokens": sum(len(shown.token_ids) for shown in settled),
        "flicker": round(report.flicker, 3),
        "passes": passes,
        "different": different,
    }


async def run(address: str, model: LlamaModel, arguments: argparse.Namespace) -> dict[str, Any]:
    """All tasks."""
    drafters = [
        LlamaDrafter(model, threads=arguments.threads, context=2048) for _ in range(DRAFTERS)
    ]
    async with (
        AsyncEdgeClient(address, model.tokenizer) as bare,
        AsyncEdgeClient(address, model.tokenizer, drafters) as client,
    ):
        found = await asyncio.gather(*(measure(bare, client, task, arguments) for task in TASKS))
        return dict(zip(TASKS, found, strict=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--captions", type=Path, default=CAPTIONS, metavar="FILE")
    parser.add_argument("--lines", type=int, default=0, help="stop after so many lines (0: all)")
    parser.add_argument("--k", type=int, default=8, help="drafts of the model a round (8)")
    parser.add_argument("--tokens", type=int, default=64, help="longest translation (64)")
    parser.add_argument("--threads", type=int, default=1, help="threads of either side (1)")
    parser.add_argument("--limit", type=float, default=3.0, help="least ratio allowed (3)")
    parser.add_argument("--check", action="store_true", help="exit 1 below the limit")
    parser.add_argument("--show", action="store_true", help="print each update and its passes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser


def main() -> int:
    """Run from the command line; returns the exit status."""
    arguments = _parser().parse_args()
    model = LlamaModel.load(demo_model_path())
    serve = ["--model", str(demo_model_path()), "--threads", str(arguments.threads)]
    with VerifierProcess(serve) as verifier:
        results = asyncio.run(run(verifier.address, model, arguments))
    model.close()
    failed = False
    for task, result in results.items():
        passes, updates = result["passes"], result["updates"]
        print(
            f"{task}: {result['lines']} lines, {updates} updates, {result['tokens']} tokens, "
            f"flicker {result['flicker']:.2f} words a word"
        )
        for way in WAYS:
            fewer = passes["alone"] / passes[way]
            each = passes[way] / updates
            print(f"  {way:<9} {passes[way]:5} passes  {each:6.2f} an update  {fewer:5.2f}x fewer")
        few = passes["alone"] >= arguments.limit * passes["followed"]
        if result["different"]:
            print(f"{task}: {result['different']} texts differ", file=sys.stderr)
        if not few:
            print(f"{task}: less than {arguments.limit:g} times fewer passes", file=sys.stderr)
        failed |= bool(result["different"]) or not few
    if arguments.json:
        report = {"machine": platform.machine(), "k": arguments.k, "tasks": results}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(arguments.check and failed)


if __name__ == "__main__":
    sys.exit(main())
