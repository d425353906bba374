"""The target alone in transformers, in a process of its own: `generate`, and assisted generation.

The assistant is the target itself: the draft model is the same file in 4 bits, which transformers
can only run dequantized. So each of its drafts costs what a target's token does, and what can be
gained is only what a pass over several rows saves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from typing import Any

from bench._cores import Others
from bench._network_run import digest
from draftwire.errors import InternalError

WAYS = ("transformers generate", "transformers assisted")


def measure(
    model: str, prompts: Sequence[Sequence[int]], tokens: int, cores: Collection[int]
) -> list[dict[str, Any]]:
    """Decode each prompt greedily both ways, on these cores if any are named.

    Raises `InternalError` if that fails.
    """
    job = {"model": model, "tokens": tokens, "prompts": [*prompts], "cores": [*cores]}
    command = [sys.executable, "-m", "bench._alone"]
    done = subprocess.run(command, input=json.dumps(job), text=True, capture_output=True)
    if done.returncode:
        raise InternalError("transformers failed: " + "; ".join(done.stderr.splitlines()[-3:]))
    return [json.loads(line) for line in done.stdout.splitlines()]


def _main() -> None:
    job = json.load(sys.stdin)
    if job["cores"]:
        os.environ["OMP_NUM_THREADS"] = "1"  # before torch counts the processors
        os.sched_setaffinity(0, job["cores"])
    import torch
    from transformers import AutoModelForCausalLM

    from cloud_verifier.gguf_conversion import without_progress_bars
    from cloud_verifier.model_source import locate

    directory = locate(job["model"], report=lambda _: None).directory
    with without_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.train(False)
    for way in WAYS:
        _generate(model, job["prompts"][0], 8, way)  # warms up
    for prompt in job["prompts"]:
        for way in WAYS:
            others = Others({core: [os.getpid()] for core in job["cores"]})
            figures = _generate(model, prompt, job["tokens"], way)
            print(json.dumps(figures | {"others": others.shares()}), flush=True)


def _generate(model: Any, prompt: Sequence[int], tokens: int, way: str) -> dict[str, Any]:
    import torch

    ids, arrivals = torch.tensor([prompt]), list[tuple[float, int]]()
    assistant = {"assistant_model": model} if way == WAYS[1] else {}
    length, started = len(prompt), time.perf_counter()

    def note(sequence: Any, _: Any, **_options: Any) -> Any:
        nonlocal length
        arrivals.append(
            (round((time.perf_counter() - started) * 1e3, 2), sequence.shape[1] - length)
        )
        length = sequence.shape[1]
        return torch.zeros(1, dtype=torch.bool)

    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=[note],
        **assistant,
    )
    text = output[0, len(prompt) :].tolist()
    return {"setting": way, "deliveries": arrivals, "text": digest(text)}


if __name__ == "__main__":
    _main()
