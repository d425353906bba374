"""What a generation can be asked for: the options of `AsyncEdgeClient.generate`."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypedDict

from draftwire.errors import InvalidRequest, MissingDependency
from draftwire.types import MAX_TOP_LOGPROBS, Grammar, SamplingParams, StopRules, VerifyMode
from edge_client.option_types import typed
from edge_client.request import Request
from edge_client.text import checked_text

DEFAULT_MAX_TOKENS = 256
MAX_DRAFT_TOKENS = 256
"""A round's drafts are dead from the first wrong one on: more of them are hardly ever of use, and
the time they take on the device grows with the square of the text."""


class Options(TypedDict, total=False):
    """Options by name; `settings` has their defaults."""

    max_tokens: int
    """Longest output, tokens; 0: as long as the context."""
    min_tokens: int
    """The first so many tokens of the output are no end tokens."""
    temperature: float
    """0: greedy."""
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    """Divides (or, below 0, multiplies) the logits of tokens seen in prompt or output; 1: none."""
    presence_penalty: float
    """Subtracted from the logits of tokens seen in the output."""
    frequency_penalty: float
    """Subtracted once per occurrence in the output."""
    logit_bias: Mapping[int, float]
    """Added to the logits of these token ids."""
    seed: int | None
    """Of all that is random; None: a fresh one, which the summary reports."""
    stop: str | Sequence[str]
    """Strings that end the output; neither they nor what follows is part of it."""
    stop_token_ids: Sequence[int]
    """Tokens that end the output, beside the model's own end tokens."""
    ignore_eos: bool
    """Go on past the model's own end tokens."""
    json_schema: str | Mapping[str, Any]
    """The output is JSON of this schema: JSON text, or as `json.loads` gives it."""
    regex: str
    """The output matches this regular expression, all of it."""
    lark: str
    """The output is of this grammar, in llguidance's variant of Lark's language."""
    draft_with_grammar: bool | None
    """Draft only what the grammar allows; None: where llguidance is installed on this device."""
    logprobs: bool
    """Tell each token's log-probability."""
    top_logprobs: int
    """Tell those of the likeliest so many as well."""
    verify_mode: VerifyMode | str
    """How drafts are judged: "match", "rejection" (both exact), or "typical", which is lossy."""
    prompt_lookup: bool
    """Draft what followed the same tokens earlier in the text, before asking the draft model."""
    prediction: str | Sequence[int]
    """The output that is expected, text or token ids: drafted as long as it holds, and again from
    where the output agrees with it again. Looks up as `prompt_lookup` does."""
    num_draft_tokens: int | None
    """The draft model's drafts a round, 256 at most; 0: the cloud decodes alone; None: adapts. A
    prediction is sent whole all the same, unless 0."""
    timeout_s: float | None
    """Seconds after which the stream raises `DeadlineExceeded`; None: never."""
    show_drafts: bool
    """The stream has drafted tokens too, before they are final (`edge_client.Kind`)."""
    offline_tokens: int
    """How far past the committed text the draft model may go on, tokens, while the cloud can't be
    reached; the stream has those as unverified. 0: not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options, checked: the request, how to draft for it, and for how long.

    `draft_with_grammar` only where there is a grammar.
    """

    request: Request
    draft_with_grammar: bool
    prompt_lookup: bool
    prediction: str | Sequence[int]
    num_draft_tokens: int | None
    timeout_s: float | None


@typed
def settings(
    *,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    min_tokens: int = 0,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    json_schema: str | Mapping[str, Any] | None = None,
    regex: str | None = None,
    lark: str | None = None,
    draft_with_grammar: bool | None = None,
    logprobs: bool = False,
    top_logprobs: int = 0,
    verify_mode: VerifyMode | str = VerifyMode.MATCH,
    prompt_lookup: bool = False,
    prediction: str | Sequence[int] = (),
    num_draft_tokens: int | None = None,
    timeout_s: float | None = None,
    show_drafts: bool = False,
    offline_tokens: int = 0,
) -> Settings:
    """The settings of these options.

    Raises `InvalidRequest` for values out of range or of another type, and `MissingDependency`
    for `draft_with_grammar` without the `grammar` extra.
    """
    if not 0 <= top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs is {top_logprobs}, not in [0, {MAX_TOP_LOGPROBS}]")
    if num_draft_tokens is not None and not 0 <= num_draft_tokens <= MAX_DRAFT_TOKENS:
        raise InvalidRequest(
            f"num_draft_tokens is {num_draft_tokens}, not in [0, {MAX_DRAFT_TOKENS}]"
        )
    if timeout_s is not None and not 0 < timeout_s < math.inf:
        raise InvalidRequest(f"timeout_s is {timeout_s}, not above 0")
    if offline_tokens < 0:
        raise InvalidRequest(f"offline_tokens is {offline_tokens}, not ≥ 0")
    try:
        mode = VerifyMode(verify_mode)
    except ValueError:
        modes = ", ".join(one.value for one in VerifyMode)
        raise InvalidRequest(f"verify_mode is {verify_mode!r}, not one of {modes}") from None
    if json_schema is not None and not isinstance(json_schema, str):
        try:
            json_schema = json.dumps(json_schema, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"json_schema can't be said in JSON: {error}", remedy="give it as json.loads would"
            ) from None
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in strings:
        checked_text(text, "a stop string")
    grammar = _grammar(json_schema=json_schema, regex=regex, lark=lark)
    request = Request(
        sampling=SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=dict(logit_bias or {}),
            seed=secrets.randbits(64) if seed is None else seed,
        ),
        stop=StopRules(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            token_ids=tuple(stop_token_ids),
            strings=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=ignore_eos,
        ),
        logprobs=1 + top_logprobs if logprobs or top_logprobs else 0,
        mode=mode,
        grammar=grammar,
        offline_tokens=offline_tokens,
        show_drafts=show_drafts,
    )
    return Settings(
        request=request,
        draft_with_grammar=grammar is not None and _drafts_with_grammar(draft_with_grammar),
        prompt_lookup=prompt_lookup,
        prediction=prediction,
        num_draft_tokens=num_draft_tokens,
        timeout_s=timeout_s,
    )


def _grammar(**texts: str | None) -> Grammar | None:
    given = {kind: text for kind, text in texts.items() if text is not None}
    if len(given) > 1:
        raise InvalidRequest(f"{' and '.join(given)} exclude each other", remedy="give one of them")
    for kind, text in given.items():
        return Grammar(kind=kind, text=text)
    return None


def _drafts_with_grammar(wanted: bool | None) -> bool:
    installed = find_spec("llguidance") is not None
    if wanted and not installed:
        raise MissingDependency(
            "drafting with a grammar needs llguidance, which is not installed",
            remedy="pip install 'draftwire[grammar]', or leave that to the verifier",
        )
    return installed if wanted is None else wanted
