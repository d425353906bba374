"""`draftwire demo`: the main job in one command, on real models and a real socket."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from draftwire.errors import InvalidRequest
from draftwire.testing.demo import demo_model_path
from draftwire.testing.link import LinkEmulator, LinkProfile
from edge_client.client_arguments import controller_options
from edge_client.console import LEGEND, as_json, closing_line, remark, show
from edge_client.draft_model import DraftModel, check_path, drafter_of, load_model
from edge_client.drafter import Drafter
from edge_client.drafters.perturbed import HasLogits, NoisyDrafter, RandomDrafter, WrongDrafter
from edge_client.generation_arguments import check_sampling, sampling_options
from edge_client.results import Summary
from edge_client.sync import EdgeClient
from edge_client.verifier_process import VerifierProcess


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; returns the exit status: 1 if the tokens differ."""
    check_sampling(arguments)  # before anything that takes long
    screen = Console(stderr=True) if arguments.json else Console()
    model = Path(arguments.model or demo_model_path())
    check_path(model.expanduser())
    target = Path(arguments.target or model)
    device_cores, cloud_cores = _cores(one_each=arguments.pin)
    say = _Progress(screen)
    far = f", {arguments.rtt:g} ms away" if arguments.rtt else ""
    remark(screen, f"{model.stem} drafts here, on this device.")
    remark(screen, f"{target.stem} decides, in transformers and a process of its own{far}.")
    remark(screen, "The same prompt is decoded split and by the cloud alone, and compared.")
    with ExitStack() as stack:
        if device_cores:
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, device_cores)
        with say.doing("starting the verifier and loading the target"):
            serve = ["--model", str(target), "--kv-tokens", "8192", "--max-sessions", "4"]
            process = VerifierProcess(serve, cores=cloud_cores, progress=say.line)
            address = stack.enter_context(process).address
        if arguments.rtt > 0:
            link = LinkEmulator.in_thread(address, LinkProfile(rtt_ms=arguments.rtt))
            address = stack.enter_context(link).address
        with say.doing("loading the draft model"):
            loaded = load_model(model, providers=arguments.providers)
            stack.callback(loaded.close)
            spoilt = [_spoil(drafter_of(loaded), arguments, loaded)]
            options = controller_options(arguments)
            client = EdgeClient(address, loaded.tokenizer, spoilt, **options)
            stack.enter_context(client)
        with say.doing("warming up"):
            for k in (0, None):
                _one(client, arguments, num_draft_tokens=k, max_tokens=16)
        return _compare(client, arguments, screen, say)


def _compare(
    client: EdgeClient, arguments: argparse.Namespace, screen: Console, say: _Progress
) -> int:
    split: list[Summary] = []
    alone: list[Summary] = []
    for index in range(1, arguments.repeat + 1):
        if index == 1 and not arguments.json:
            remark(screen, f"\n{arguments.prompt}\n", style="bold")
            split.append(_one(client, arguments, screen=screen))
            screen.print("\n")
            if screen.color_system:
                screen.print(LEGEND, style="dim")
        else:
            with say.doing(f"split, run {index} of {arguments.repeat}"):
                split.append(_one(client, arguments))
        with say.doing(f"cloud-alone, run {index} of {arguments.repeat}"):
            alone.append(_one(client, arguments, num_draft_tokens=0))
    identical = all(run.token_ids == alone[0].token_ids for run in split + alone)
    speeds, baselines = ([run.tokens_per_s for run in runs] for runs in (split, alone))
    speedups = [ours / theirs for ours, theirs in zip(speeds, baselines, strict=True)]
    speed, baseline, speedup = map(statistics.median, (speeds, baselines, speedups))
    if arguments.json:
        report = as_json(split[0]) | {
            "identical_to_target": identical,
            "tokens_per_s": round(speed, 3),
            "baseline_tokens_per_s": round(baseline, 3),
            "speedup": round(speedup, 3),
            "speedups": [round(one, 3) for one in speedups],
            "baseline_payload_bytes_per_token": as_json(alone[0])["payload_bytes_per_token"],
            "emulated_rtt_ms": arguments.rtt,
            "pinned": arguments.pin,
            "drafter": arguments.drafter,
        }
        print(json.dumps(report, ensure_ascii=False))  # noqa: T201 (the command's output)
    else:
        remark(screen, f"\nsplit        {closing_line(split[0])}", style="")
        remark(screen, f"cloud-alone  {closing_line(alone[0])}", style="")
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
    messages = [{"role": "user", "content": arguments.prompt}]
    with client.generate(messages=messages, **settings) as stream:
        for delta in stream:
            if screen is not None:
                show(screen, delta)
        return stream.summary


def _spoil(drafter: HasLogits, arguments: argparse.Namespace, model: DraftModel) -> Drafter:
    """The drafter asked for: as it is, or made worse on purpose."""
    kind, _, size = arguments.drafter.partition(":")
    if kind == "model":
        return drafter
    if kind == "noisy":
        return NoisyDrafter(drafter, float(size))
    if kind == "random":
        return RandomDrafter(drafter, model.vocabulary_size)
    return WrongDrafter(drafter)


def _cores(*, one_each: bool) -> tuple[set[int], set[int]]:
    """Processor cores for device and cloud; none where they can't be told apart.

    On shared cores the device would take the processor away from its cloud, which it never does
    from a real one.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) >= 2:
        half = 1 if one_each else len(cores) // 2
        return set(cores[:half]), set(cores[half : 2 * half])
    if one_each:
        raise InvalidRequest("--pin needs two processor cores", remedy="leave it out")
    return set(), set()


_LOGGED = re.compile(r"\S+ \S+ [A-Z]+ [\w.]+: ")
"""What the verifier's log puts before a message."""


class _Progress:
    """Says what takes long, on the console, and what the verifier logs meanwhile."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._doing = ""
        self._status: Status | None = None

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """A spinner on a terminal, else a line before; how long it took, if that was long."""
        started = time.monotonic()
        self._doing = what
        if self._console.is_terminal:
            with self._console.status(f"{what} …") as self._status:
                yield
            self._status = None
        else:
            remark(self._console, f"{what} …", style="")
            yield
        seconds = time.monotonic() - started
        if seconds > 2:
            remark(self._console, f"{what}: {seconds:.1f} s")

    def line(self, line: str) -> None:
        """A line that the verifier logged: beside the spinner, or below what is being done."""
        message = _LOGGED.sub("", line)
        if self._status is None:
            remark(self._console, f"  {message}")
        else:
            room = max(0, self._console.width - len(self._doing) - 6)
            self._status.update(f"{self._doing} … [dim]{escape(message[:room])}[/dim]")
