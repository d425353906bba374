"""What an app gets back: deltas as they come, and a summary at the end."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from draftwire.types import FinishReason, TokenLogprobs, Usage, VerifyMode
from edge_client.branch import Origin
from edge_client.options import Settings
from edge_client.session import Generation
from edge_client.transport import WireBytes


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its id, the text it completes (maybe none), and where it came from.

    `logprobs`, if asked for, are those of the target's own distribution, before sampling
    parameters: they don't depend on temperature, penalties or drafts.
    """

    id: int
    text: str
    origin: Origin
    logprobs: TokenLogprobs | None = None

    @property
    def drafted(self) -> bool:
        """Whether the device drafted it and the target accepted."""
        return self.origin is Origin.ACCEPTED


class Kind(enum.Enum):
    """What a delta does to the text. Unless asked for more, a stream has committed text only."""

    COMMITTED = "committed"
    """It is final. If some of it was shown as tentative, it begins with that."""
    DRAFTED = "drafted"
    """Tentative: follows what is shown, and a verdict on it is to come."""
    UNVERIFIED = "unverified"
    """Tentative, and drafted while the cloud could not be reached."""
    RETRACTED = "retracted"
    """What is shown ends with it, and it is to be removed there."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A change of the text. A character is never split between deltas.

    `edge_client.reduce` says what all of them add up to.
    """

    text: str
    tokens: tuple[Token, ...]
    kind: Kind = Kind.COMMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a generation went. `seed` is the one used, `logprobs` one a token if asked for.

    Times in ms; `bytes` is payload, gRPC's own framing apart.

    `rounds` are passes of the target, `drafted` the tokens sent for judgement, `accepted` those
    that held. `alpha` is the share of judged drafts that held (a draft after a rejected one is
    not judged), `tau` the tokens committed per pass, `k_mean` the mean length of the drafts.
    `ttft_ms` is the time to the first token, `tpot_ms` the mean time per token after it.
    `unverified` counts the tokens drafted while the cloud could not be reached, `retracted` those
    that were shown before they were final and taken back.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    rounds: int
    drafted: int
    accepted: int
    alpha: float
    tau: float
    k_mean: float
    ttft_ms: float
    tpot_ms: float
    duration_ms: float
    rtt_ms: float
    streams: int
    bytes: WireBytes
    usage: Usage
    logprobs: tuple[TokenLogprobs, ...] = ()
    verify_mode: VerifyMode = VerifyMode.MATCH
    unverified: int = 0
    retracted: int = 0

    @property
    def lossy(self) -> bool:
        """Whether the text may differ from what the target alone would have written."""
        return self.verify_mode is VerifyMode.TYPICAL

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second from request to last token."""
        return len(self.token_ids) / self.duration_ms * 1e3 if self.duration_ms else 0.0


def summarise(
    generation: Generation,
    text: str,
    tokens: Sequence[Token],
    settings: Settings,
    times: tuple[float, float, float],
    retracted: int = 0,
) -> Summary:
    """The summary of a finished generation; `times` are start, first and last token in seconds.

    `retracted` tokens were shown and taken back.
    """
    finished = generation.finished
    usage = finished.usage if finished else Usage()
    started, first, last = times
    accepted = sum(token.drafted for token in tokens)
    held = sum(agreed for _, agreed in generation.outcomes)
    return Summary(
        text=text,
        token_ids=tuple(token.id for token in tokens),
        logprobs=tuple(token.logprobs for token in tokens if token.logprobs is not None),
        finish_reason=finished.reason if finished else FinishReason.CANCELLED,
        seed=settings.request.sampling.seed,
        verify_mode=settings.request.mode,
        rounds=usage.passes,
        drafted=generation.sent_tokens,
        accepted=accepted,
        alpha=held / max(1, len(generation.outcomes)),
        tau=len(tokens) / max(1, usage.passes),
        k_mean=generation.sent_tokens / max(1, generation.sent_frames),
        ttft_ms=(first - started) * 1e3,
        tpot_ms=(last - first) * 1e3 / max(1, len(tokens) - 1),
        duration_ms=(last - started) * 1e3,
        rtt_ms=median(generation.rtts_s) * 1e3 if generation.rtts_s else 0.0,
        streams=generation.opens,
        bytes=generation.bytes,
        usage=usage,
        unverified=generation.offline.drafted,
        retracted=retracted,
    )
