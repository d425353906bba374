"""Several devices with drafts of every quality on one engine over a real model."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from cloud_verifier.engine import Arrival, Engine, EngineConfig
from cloud_verifier.hf_target import HFTarget
from cloud_verifier.sessions import Stream
from draftwire.errors import DraftwireError
from draftwire.types import (
    Draft,
    Finished,
    History,
    Open,
    Opened,
    ServerFrame,
    StopRules,
    Verdict,
)

QUALITIES = ("right", "wrong in the middle", "random", "right, but late")


@dataclass
class Device:
    """Drafts `most` tokens a round for a text whose true continuation it knows."""

    prompt: Sequence[int]
    truth: Sequence[int]
    quality: str
    most: int
    text: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    epoch: int = 0
    finished: Finished | None = None
    accepted: list[int] = field(default_factory=list)

    def open(self, number: int, fingerprint: bytes) -> Open:
        return Open(
            session_id=number.to_bytes(16),
            attempt=1,
            generation=1,
            start=len(self.prompt),
            history=History(tokens=tuple(self.prompt)),
            vocabulary_fingerprint=fingerprint,
            stop=StopRules(max_tokens=len(self.truth), ignore_eos=True),
        )

    def draft(self, vocabulary: int, chance: random.Random) -> Draft:
        """The next round's draft, which may reach past the end of the text."""
        rest = list(self.truth[len(self.text) :][: self.most])
        rest += [chance.randrange(vocabulary) for _ in range(self.most - len(rest))]
        if self.quality == "random":
            rest = [chance.randrange(vocabulary) for _ in rest]
        elif self.quality == "wrong in the middle" and rest:
            middle = len(rest) // 2
            rest[middle] = (rest[middle] + 1) % vocabulary
        self.drafted = rest
        self.epoch += 1
        return Draft(
            base=len(self.prompt) + len(self.text),
            epoch=self.epoch,
            tokens=tuple(rest),
            credit=1,
        )

    def take(self, frame: ServerFrame) -> bool:
        """Whether another draft is due."""
        if isinstance(frame, Verdict):
            assert frame.base == len(self.prompt) + len(self.text)
            self.text += [*self.drafted[: frame.accepted], *frame.next]
            self.accepted.append(frame.accepted)
            return True
        if isinstance(frame, Finished):
            self.finished = frame
        return isinstance(frame, Opened)


def run(target: HFTarget, devices: Sequence[Device], *, max_batch_tokens: int) -> int:
    """Let every device have its text; returns the most sessions that shared a pass.

    Devices of the quality "right, but late" answer every third step only.
    """
    engine = Engine(target, EngineConfig(max_batch_tokens=max_batch_tokens))
    fingerprint = target.card.target.vocabulary_fingerprint
    vocabulary, chance = target.card.vocabulary_size, random.Random(5)
    streams = {Stream(): device for device in devices}
    waiting = [
        Arrival(stream, device.open(number, fingerprint), time.monotonic())
        for number, (stream, device) in enumerate(streams.items(), start=1)
    ]
    shared = steps = 0
    while not all(device.finished for device in devices):
        steps += 1
        assert steps < 1000
        late = [
            arrival
            for arrival in waiting
            if steps % 3 and streams[arrival.stream].quality == "right, but late"
        ]
        departures = engine.step([arrival for arrival in waiting if arrival not in late])
        waiting = late
        judged = set()
        for stream, frame in departures:
            assert not isinstance(frame, DraftwireError), frame
            device = streams[stream]
            if isinstance(frame, Verdict):
                judged.add(stream)
            if device.take(frame):
                draft = device.draft(vocabulary, chance)
                waiting.append(Arrival(stream, draft, time.monotonic()))
        shared = max(shared, len(judged))
    return shared


def truth(
    target: HFTarget, prompts: Sequence[Sequence[int]], counts: Sequence[int]
) -> Iterator[tuple[list[int], float]]:
    """What transformers' own `generate` makes of each prompt, and by how little it decided."""
    with target.plain() as model, torch.inference_mode():
        for prompt, count in zip(prompts, counts, strict=True):
            ids = torch.tensor([prompt])
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                eos_token_id=None,
                do_sample=False,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            best = torch.cat(output.logits).float().topk(2).values
            margin = float((best[:, 0] - best[:, 1]).min())
            yield output.sequences[0, len(prompt) :].tolist(), margin
