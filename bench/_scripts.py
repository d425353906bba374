"""Texts that the target writes, known before they are measured: drafts without a draft model.

A scripted device drafts the target's own greedy continuation and replaces a seeded share of it by
wrong tokens, so that acceptance is what the benchmark says and no drafter wants a processor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cloud_verifier.hf_target import HFTarget
from cloud_verifier.target import Row
from draftwire.types import Tokens

SHARE_WRONG = 0.1
_SPARE = 4  # texts written beyond those wanted: the ones with the nearest ties are left out


@dataclass(frozen=True, slots=True)
class Script:
    """A prompt and what the target says after it.

    `margin` is how far the two best logits lay apart where they were nearest, anywhere in it.
    """

    prompt: Tokens
    text: Tokens
    margin: float

    def draft(self, at: int, count: int, wrong: Callable[[int], bool]) -> list[int]:
        """Drafts for the tokens `at`, `at + 1`, … of the text, those `wrong` names replaced.

        Fewer than `count` where the text ends.
        """
        held = self.text[at : at + count]
        return [other(token) if wrong(i) else token for i, token in enumerate(held, start=at)]


def other(token: int) -> int:
    """A token that is not this one."""
    return token - 1 if token else 1


def wrong_at(share: float, seed: int = 0) -> Callable[[int], bool]:
    """Which places of a text a device drafts wrongly: a seeded `share` of them."""
    return lambda place: random.Random(f"{seed} {place}").random() < share


def write(
    target: HFTarget,
    count: int,
    *,
    prompt: int,
    length: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,  # noqa: ARG005
) -> list[Script]:
    """`count` prompts of `prompt` random tokens and `length` greedy tokens after each.

    One pass of one-token rows for each token. Uses the target's KV from block 0 on.
    """
    draw = random.Random(seed)
    vocabulary, size = target.card.vocabulary_size, target.block_size
    prompts = [[draw.randrange(vocabulary) for _ in range(prompt)] for _ in range(count + _SPARE)]
    each = -(-(prompt + length) // size)
    tables = [range(i * each, (i + 1) * each) for i in range(len(prompts))]
    texts: list[list[int]] = [[] for _ in prompts]
    margins = [float("inf")] * len(prompts)
    for done in range(length):
        if done == 0:
            heads = [
                target.logits([Row(tokens=tokens, start=0, blocks=table)])
                for tokens, table in zip(prompts, tables, strict=True)
            ]
            logits = torch.cat(heads)  # [texts, vocab]
        else:
            start = prompt + done - 1
            logits = target.logits(
                [
                    Row(tokens=text[-1:], start=start, blocks=table)
                    for text, table in zip(texts, tables, strict=True)
                ]
            )
        best = logits.topk(2, dim=-1)
        for i, (token, (first, second)) in enumerate(
            zip(best.indices[:, 0].tolist(), best.values.tolist(), strict=True)
        ):
            texts[i].append(token)
            margins[i] = min(margins[i], first - second)
        progress(f"writing texts: token {done + 1} of {length}")
    scripts = [
        Script(tuple(p), tuple(t), m) for p, t, m in zip(prompts, texts, margins, strict=True)
    ]
    surest = sorted(scripts, key=lambda script: -script.margin)[:count]
    return [script for script in scripts if script in surest]


def kv_tokens(count: int, *, prompt: int, length: int) -> int:
    """KV that it takes to write so many texts, or to run them, tokens."""
    return (count + _SPARE) * (prompt + length + 64)


def acceptance(rounds: Sequence[tuple[int, int]]) -> float:
    """α over rounds of (drafts judged, accepted): a draft after a rejected one is not judged."""
    held = sum(accepted for _, accepted in rounds)
    rejected = sum(accepted < drafts for drafts, accepted in rounds)
    return held / max(1, held + rejected)
