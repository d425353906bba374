"""Options that say what is asked of a generation."""

from __future__ import annotations

import argparse
from inspect import signature
from typing import Any

from draftwire.command_line import content, number, seconds, whole
from draftwire.types import VerifyMode
from edge_client.options import settings


def add_sampling(
    parser: argparse.ArgumentParser, max_tokens: int = 256, seed: int | None = None
) -> None:
    """How to decode, and until when."""
    group = parser.add_argument_group("generation")
    group.add_argument(
        "--max-tokens",
        type=whole,
        default=max_tokens,
        metavar="N",
        help="longest answer, tokens; 0: as long as the context",
    )
    group.add_argument(
        "--min-tokens",
        type=whole,
        default=0,
        metavar="N",
        help="no end token among the first N",
    )
    group.add_argument("--temperature", type=number, default=0.0, metavar="T", help="0: greedy")
    group.add_argument(
        "--top-k", type=whole, default=0, metavar="N", help="keep the N likeliest tokens; 0: all"
    )
    group.add_argument(
        "--top-p",
        type=number,
        default=1.0,
        metavar="P",
        help="keep the likeliest tokens that together reach P",
    )
    group.add_argument(
        "--min-p",
        type=number,
        default=0.0,
        metavar="P",
        help="drop tokens below P times the likeliest one's probability",
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end the answer before this text (may be repeated)",
    )
    _add_penalties(group)
    group.add_argument(
        "--seed",
        type=whole,
        default=seed,
        metavar="N",
        help="of all that is random" + ("" if seed is not None else " (default: a random one)"),
    )
    group.add_argument(
        "--verify-mode",
        choices=[mode.value for mode in VerifyMode],
        default=VerifyMode.MATCH.value,
        help="how drafts are judged; typical is lossy: the text may not be the target's own",
    )
    group.add_argument(
        "--prompt-lookup",
        action="store_true",
        help="draft what followed the same tokens earlier in the text, where it repeats itself",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        dest="timeout_s",
        metavar="S",
        help="give up on an answer that has not ended by then",
    )
    group.add_argument(
        "--num-draft-tokens",
        type=whole,
        metavar="K",
        help="drafts per round, 256 at most; 0: the cloud decodes alone (default: adapts)",
    )


def _add_penalties(group: Any) -> None:
    for name, default, text in (
        ("repetition", 1.0, "divide logits of tokens seen in prompt or output by P; 1: none"),
        ("presence", 0.0, "subtract P from logits of tokens seen in the output"),
        ("frequency", 0.0, "subtract P per occurrence in the output"),
    ):
        group.add_argument(
            f"--{name}-penalty", type=number, default=default, metavar="P", help=text
        )
    group.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        default=[],
        metavar="ID:BIAS",
        help="add BIAS to the logit of a token id (may be repeated)",
    )


def add_tentative(parser: argparse.ArgumentParser) -> None:
    """What is shown before the cloud has judged it."""
    group = parser.add_argument_group("text before it is final")
    group.add_argument(
        "--show-drafts", action="store_true", help="on a terminal: show drafts, dimmed, at once"
    )
    group.add_argument(
        "--offline-tokens",
        type=whole,
        default=0,
        metavar="N",
        help="while the verifier can't be reached, draft on alone, N tokens at most; they are "
        "verified, and replaced if need be, when it is back",
    )


def add_grammar(parser: argparse.ArgumentParser) -> None:
    """What the answer must be of."""
    group = parser.add_argument_group("structured output (one of)")
    for name, kind, metavar, text in (
        ("json-schema", content, "FILE", "the answer is JSON of this schema"),
        ("regex", str, "PATTERN", "the answer matches this regular expression, all of it"),
        ("lark", content, "FILE", "the answer is of this grammar, in llguidance's Lark"),
    ):
        group.add_argument(
            f"--{name}", type=kind, default=argparse.SUPPRESS, metavar=metavar, help=text
        )


def _bias(text: str) -> tuple[int, float]:
    token, colon, bias = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError("use ID:BIAS, as in 42:-100") from None


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `EdgeClient.generate` that were given on the command line."""
    names = signature(settings).parameters
    options = {name: value for name, value in vars(arguments).items() if name in names}
    return options | {"logit_bias": dict(arguments.logit_bias)}


def check_sampling(arguments: argparse.Namespace) -> None:
    """Raise `InvalidRequest` for what `EdgeClient.generate` would refuse."""
    settings(**sampling_options(arguments))
