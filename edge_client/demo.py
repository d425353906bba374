"""`draftwire demo`: the main job in one command, on real models and a real socket."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from draftwire.errors import InvalidRequest
from draftwire.testing.demo import demo_model_path
from draftwire.testing.link import LinkEmulator, LinkProfile
from edge_client.cli import sampling_options
from edge_client.console import LEGEND, as_json, closing_line, show
from edge_client.drafter import Drafter
from edge_client.drafters.llama import LlamaDrafter
from edge_client.drafters.llama_model import LlamaModel
from edge_client.drafters.perturbed import NoisyDrafter, RandomDrafter, WrongDrafter
from edge_client.results import Summary
from edge_client.sync import EdgeClient
from edge_client.verifier_process import VerifierProcess


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; returns the exit status: 1 if the tokens differ."""
    screen = Console(stderr=True) if arguments.json else Console()
    model = Path(arguments.model or demo_model_path())
    target = arguments.target or str(model)
    device_core, cloud_core = _cores() if arguments.pin else (None, None)
    with ExitStack() as stack:
        if device_core is not None:
            os.sched_setaffinity(0, {device_core})
        say = _Progress(screen)
        serve = ["--model", target, "--kv-tokens", "8192", "--max-sessions", "4"]
        with say.doing("starting the verifier and loading the target"):
            threads = ["--threads", "1"] if cloud_core is not None else []
            process = VerifierProcess([*serve, *threads], core=cloud_core, progress=say.line)
            address = stack.enter_context(process).address
        if arguments.rtt > 0:
            link = LinkEmulator.in_thread(address, LinkProfile(rtt_ms=arguments.rtt))
            address = stack.enter_context(link).address
        with say.doing("loading the draft model"):
            loaded = LlamaModel.load(model)
            stack.callback(loaded.close)
            drafter = LlamaDrafter(loaded, threads=1 if arguments.pin else None)
            client = EdgeClient(address, loaded.tokenizer, [_spoil(drafter, arguments, loaded)])
            stack.enter_context(client)
        with say.doing("warming up"):
            for k in (None, 0):
                _one(client, arguments, num_draft_tokens=k, max_tokens=8)
        return _compare(client, arguments, screen, say)


def _compare(
    client: EdgeClient, arguments: argparse.Namespace, screen: Console, say: _Progress
) -> int:
    split: list[Summary] = []
    alone: list[Summary] = []
    for index in range(max(1, arguments.repeat)):
        if index == 0 and not arguments.json:
            screen.print(f"\n[bold]{arguments.prompt}[/bold]\n", highlight=False)
            split.append(_one(client, arguments, screen=screen))
            screen.print("\n")
            screen.print(LEGEND, style="dim")
        else:
            with say.doing(f"split, run {index + 1}"):
                split.append(_one(client, arguments))
        with say.doing(f"cloud-alone, run {index + 1}"):
            alone.append(_one(client, arguments, num_draft_tokens=0))
    identical = all(run.token_ids == alone[0].token_ids for run in split + alone)
    speed = statistics.median(run.tokens_per_s for run in split)
    baseline = statistics.median(run.tokens_per_s for run in alone)
    speedup = statistics.median(
        a.tokens_per_s / b.tokens_per_s for a, b in zip(split, alone, strict=True)
    )
    if arguments.json:
        report = as_json(split[0]) | {
            "identical_to_target": identical,
            "tokens_per_s": round(speed, 3),
            "baseline_tokens_per_s": round(baseline, 3),
            "speedup": round(speedup, 3),
            "speedups": [
                round(a.tokens_per_s / b.tokens_per_s, 3) for a, b in zip(split, alone, strict=True)
            ],
            "baseline_payload_bytes_per_token": as_json(alone[0])["payload_bytes_per_token"],
            "emulated_rtt_ms": arguments.rtt,
            "pinned": arguments.pin,
            "drafter": arguments.drafter,
        }
        print(json.dumps(report, ensure_ascii=False))  # noqa: T201 (the command's output)
    else:
        screen.print(f"\nsplit        {closing_line(split[0])}", highlight=False)
        screen.print(f"cloud-alone  {closing_line(alone[0])}", highlight=False)
        verdict = "identical" if identical else "[bold red]DIFFERENT[/bold red]"
        screen.print(
            f"tokens {verdict} · {speed:.1f} against {baseline:.1f} tokens/s · "
            f"[bold]{speedup:.2f}×[/bold]",
            highlight=False,
        )
    return 0 if identical else 1


def _one(
    client: EdgeClient,
    arguments: argparse.Namespace,
    *,
    screen: Console | None = None,
    **options: int | None,
) -> Summary:
    """One generation of the demo's prompt."""
    settings = sampling_options(arguments) | {"ignore_eos": arguments.ignore_eos} | options
    settings["seed"] = arguments.seed or 0
    messages = [{"role": "user", "content": arguments.prompt}]
    with client.generate(messages=messages, **settings) as stream:
        for delta in stream:
            if screen is not None:
                show(screen, delta)
        return stream.summary


def _spoil(drafter: LlamaDrafter, arguments: argparse.Namespace, model: LlamaModel) -> Drafter:
    """The drafter asked for: as it is, or made worse on purpose."""
    kind, _, size = arguments.drafter.partition(":")
    if kind == "model":
        return drafter
    if kind == "noisy" and size:
        return NoisyDrafter(drafter, float(size))
    if kind == "random":
        return RandomDrafter(drafter, model.vocabulary_size)
    if kind == "wrong":
        return WrongDrafter(drafter)
    raise InvalidRequest(
        f"no drafter {arguments.drafter!r}", remedy="use model, noisy:SIZE, random or wrong"
    )


def _cores() -> tuple[int, int]:
    """A processor core for each side."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        raise InvalidRequest("--pin needs two processor cores", remedy="leave it out")
    return cores[0], cores[1]


class _Progress:
    """Says what takes long, on the console, and what the verifier logs meanwhile."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: str = ""

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """A spinner on a terminal; else a line before and the time after."""
        started = time.monotonic()
        self._status = what
        if self._console.is_terminal:
            with self._console.status(f"{what} …"):
                yield
        else:
            self._console.print(f"{what} …", highlight=False)
            yield
        seconds = time.monotonic() - started
        if seconds > 2:
            self._console.print(f"{what}: {seconds:.1f} s", style="dim", highlight=False)

    def line(self, line: str) -> None:
        """A line that the verifier logged."""
        self._console.print(f"  {line}", style="dim", highlight=False, markup=False)
