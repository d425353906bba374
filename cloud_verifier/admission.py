"""What is refused before any work is done for it, each thing by its name."""

from __future__ import annotations

from cloud_verifier.target import GRAMMAR, STOP_STRINGS
from draftwire.errors import (
    DeadlineExceeded,
    DraftwireError,
    InvalidRequest,
    LimitExceeded,
    ModelChanged,
    ModelNotFound,
    PromptTooLong,
    ProtocolVersion,
    ServerFull,
    UnsupportedParameter,
    VocabularyMismatch,
)
from draftwire.grammar import GrammarCompiler, Matcher
from draftwire.types import MAX_TOP_LOGPROBS, Draft, ModelCard, Open, Tokens


def check_open(opening: Open, card: ModelCard) -> None:
    """Raise the error of the first thing in `opening` that `card` does not serve."""
    target = card.target
    if opening.protocol_version not in card.protocol_versions:
        raise ProtocolVersion(
            f"protocol version {opening.protocol_version} is not spoken here",
            remedy=f"use one of {list(card.protocol_versions)}",
        )
    if opening.model not in ("", target.model):
        raise ModelNotFound(
            f"model {opening.model!r} is not served here",
            remedy=f"ask for {target.model!r}, or for no model by name",
        )
    if opening.expected_target not in (b"", target.digest):
        raise ModelChanged(
            f"the session began on target {opening.expected_target.hex()}, this one is "
            f"{target.digest.hex()} ({target.model}, {target.dtype})",
            remedy="go on with a verifier that serves the same weights and dtype, or start anew",
        )
    if opening.vocabulary_fingerprint != target.vocabulary_fingerprint:
        raise VocabularyMismatch(
            f"the draft model's vocabulary ({opening.vocabulary_fingerprint.hex()[:12]}…) is not "
            f"that of {target.model} ({target.vocabulary_fingerprint.hex()[:12]}…)",
            remedy="draft with a model of the same family and tokenizer",
        )
    refused = _unsupported(opening, card)
    if refused:
        raise UnsupportedParameter(
            f"not served here: {', '.join(refused)}",
            remedy="leave it out, or use a verifier whose model card lists it",
        )
    _check_ids(opening.history.tokens, card, "the prompt")
    _check_ids(opening.stop.token_ids, card, "stop token ids")
    _check_ids(tuple(opening.sampling.logit_bias), card, "logit_bias")
    if opening.logprobs > MAX_TOP_LOGPROBS + 1:
        raise InvalidRequest(
            f"{opening.logprobs - 1} top logprobs are asked for, at most {MAX_TOP_LOGPROBS} told",
            remedy="ask for fewer",
        )
    ends = opening.stop.ends(target.eos_token_ids)
    if opening.stop.min_tokens and len(ends) >= card.vocabulary_size:
        raise InvalidRequest(
            "min_tokens leaves no token to choose: every one is an end token",
            remedy="leave out min_tokens, or name fewer stop tokens",
        )
    if opening.start >= card.limits.max_context:
        raise PromptTooLong(
            f"the prompt has {opening.start} tokens, the context holds {card.limits.max_context} "
            "and the answer needs one",
            remedy="shorten the prompt, or serve with a larger --max-context",
        )


def compiled(
    opening: Open, history: Tokens, card: ModelCard, grammars: GrammarCompiler | None
) -> Matcher | None:
    """The grammar that `opening` asks for, None for none. Of use where `check_open` found no fault.

    Raises `InvalidRequest` if it does not compile, or the output in `history` is not of it.
    """
    if opening.grammar is None or grammars is None:
        return None
    matcher = grammars.compile(opening.grammar, opening.stop.ends(card.target.eos_token_ids))
    if not matcher.accepts(history[opening.start :]):
        raise InvalidRequest(
            "the output in the history is not one that the grammar allows",
            remedy="go on with the grammar that it was begun with",
        )
    return matcher


def check_fits(reach: int, kv_tokens: int) -> None:
    """Raise `PromptTooLong` if a text of `reach` tokens could not be held even by itself."""
    if reach > kv_tokens:
        raise PromptTooLong(
            f"the text can come to {reach} tokens, and there is KV for {kv_tokens} in all",
            remedy="ask for fewer max_tokens, or serve with more --kv-tokens",
        )


def full(generations: int) -> ServerFull:
    """What is said when that many generations are in flight, the most there may be."""
    return ServerFull(
        f"{generations} generations are in flight, the most that are served at once",
        remedy="try again later, or serve with more --max-sessions",
    )


def overdue(waited_s: float, *, silent: bool) -> DraftwireError:
    """What is said when a device, or else its generation, has taken that long."""
    if silent:
        return DeadlineExceeded(
            f"nothing came from the device for {waited_s:.0f} s",
            remedy="open the session again and go on; nothing is lost",
        )
    return LimitExceeded(
        f"the generation has taken {waited_s:.0f} s",
        remedy="ask for fewer max_tokens, or serve with a longer --max-generation-time",
    )


def check_draft(draft: Draft, card: ModelCard) -> None:
    """Raise the error of the first thing in `draft` that `card` does not serve."""
    if draft.parents:
        raise UnsupportedParameter("tree drafts are not served here", remedy="send plain drafts")
    if draft.q and len(draft.q) != len(draft.tokens):
        raise InvalidRequest(
            f"{len(draft.tokens)} drafts came with {len(draft.q)} distributions",
            remedy="send one for each draft, or none",
        )
    for token, q in zip(draft.tokens, draft.q, strict=False):
        _check_ids(q.tokens, card, "a draft distribution")
        if not q.weight(token):
            raise InvalidRequest(
                f"draft {token} has no weight in its own distribution",
                remedy="send the distribution that was sampled from, or none",
            )
    _check_ids(draft.tokens, card, "the draft")


def _unsupported(opening: Open, card: ModelCard) -> list[str]:
    modes = [mode.value for mode in card.verify_modes]
    asked = {
        f"verify_mode {opening.mode.value} (served: {', '.join(modes)})": opening.mode
        not in card.verify_modes,
        "stop strings": bool(opening.stop.strings) and STOP_STRINGS not in card.features,
        "grammar": opening.grammar is not None and GRAMMAR not in card.features,
    }
    refused = [name for name, wanted in asked.items() if wanted]
    refused += [
        f"feature {name!r} (served: {', '.join(card.features) or 'none'})"
        for name in opening.required_features
        if name not in card.features
    ]
    return refused


def _check_ids(tokens: Tokens, card: ModelCard, what: str) -> None:
    if tokens and max(tokens) >= card.vocabulary_size:
        raise InvalidRequest(
            f"{what} holds token {max(tokens)}, the vocabulary ends at {card.vocabulary_size - 1}",
            remedy="use the target's tokenizer",
        )
