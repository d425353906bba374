"""Sessions that wait for a pass, without an engine."""

from __future__ import annotations

from cloud_verifier.sessions import Session, Stream
from draftwire.types import (
    Draft,
    History,
    ModelCard,
    Open,
    ServingLimits,
    StopRules,
    TargetIdentity,
)

CARD = ModelCard(
    target=TargetIdentity(
        model="toy", digest=b"", dtype="float32", vocabulary_fingerprint=b"", noise_version=1
    ),
    limits=ServingLimits(max_context=200, max_rows=6),
    vocabulary_size=100,
)


def waiting(
    since: float,
    *,
    prompt: int = 1,
    held: int = 0,
    drafts: int = 0,
    max_tokens: int = 0,
    owner: str = "",
) -> Session:
    """A session that has waited since then, with `held` of its prompt's tokens in KV."""
    session = Session(bytes(16), owner, CARD)
    frame = Open(
        session_id=bytes(16),
        attempt=1,
        generation=1,
        start=prompt,
        history=History(tokens=(1,) * prompt),
        vocabulary_fingerprint=b"",
        stop=StopRules(max_tokens=max_tokens),
    )
    session.open(frame, session.resolve(frame), Stream())
    session.draft(Draft(base=prompt, epoch=0, tokens=(2,) * drafts, credit=1))
    session.kv.length = held
    session.queued_at = since
    return session
