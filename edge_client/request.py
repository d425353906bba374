"""What is asked of one generation."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwire.types import Grammar, SamplingParams, StopRules, VerifyMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How to decode and until when; what was said before is the prompt, and not part of it.

    `logprobs` is how many log-probabilities each token comes with: its own and those of the
    likeliest others. The verifier keeps the output within the `grammar`. While it can't be
    reached, up to `offline_tokens` are drafted past the text. With `show_drafts` all drafts are
    tentative text, else only those.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: StopRules = field(default_factory=StopRules)
    logprobs: int = 0
    mode: VerifyMode = VerifyMode.MATCH
    grammar: Grammar | None = None
    offline_tokens: int = 0
    show_drafts: bool = False
