"""Frames to protobuf messages and back.

The generated code stays behind this module: the rest of the program speaks `draftwire.types`.
A message that breaks a rule raises `ProtocolViolation` (no frame, unknown kind) or
`InvalidRequest` (a value out of range).
"""

from __future__ import annotations

import itertools
from itertools import accumulate, pairwise
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from draftwire import types as t
from draftwire.errors import ProtocolViolation, UnsupportedParameter
from draftwire.v1 import verifier_pb2 as pb

M = TypeVar("M", bound=Message)

_MODES = {
    t.VerifyMode.MATCH: pb.VERIFY_MODE_MATCH,
    t.VerifyMode.REJECTION: pb.VERIFY_MODE_REJECTION,
    t.VerifyMode.TYPICAL: pb.VERIFY_MODE_TYPICAL,
}
_MODES_BACK = {number: mode for mode, number in _MODES.items()}
_REASONS = {
    t.FinishReason.STOP: pb.FINISH_REASON_STOP,
    t.FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    t.FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}
_REASONS_BACK = {number: reason for reason, number in _REASONS.items()}


# ------------------------------------------------------------------ bytes


def pack_client(frame: t.ClientFrame) -> bytes:
    """A client's frame as it goes over the wire, gRPC's own framing apart."""
    return encode_client(frame).SerializeToString()


def unpack_client(data: bytes) -> t.ClientFrame:
    """The client's frame of its bytes."""
    return decode_client(_parse(pb.ClientFrame, data))


def pack_server(frame: t.ServerFrame) -> bytes:
    """A verifier's frame as it goes over the wire, gRPC's own framing apart."""
    return encode_server(frame).SerializeToString()


def unpack_server(data: bytes) -> t.ServerFrame:
    """The verifier's frame of its bytes."""
    return decode_server(_parse(pb.ServerFrame, data))


def pad(message: pb.ClientFrame | pb.ServerFrame, multiple: int) -> None:
    """Make a frame's length a multiple of that many bytes; 0 leaves it as it is."""
    missing = -message.ByteSize() % multiple if multiple else 0
    if not missing:
        return
    for total in itertools.count(missing, multiple):
        for header in (2, 3):  # the field's tag and its length, one byte of length up to 127
            length = total - header
            if length > 0 and (length < 128) == (header == 2):
                message.padding = bytes(length)
                return


def _parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolViolation(f"the frame can't be parsed: {error}") from error


# ------------------------------------------------------------------ client → verifier


def encode_client(frame: t.ClientFrame) -> pb.ClientFrame:
    """The message of a client's frame."""
    match frame:
        case t.Draft():
            return pb.ClientFrame(
                draft=pb.Draft(
                    base=frame.base,
                    epoch=frame.epoch,
                    tokens=frame.tokens,
                    credit=frame.credit,
                    parents=frame.parents,
                    q=[
                        pb.CompactDistribution(tokens=_differences(q.tokens), weights=q.weights)
                        for q in frame.q
                    ],
                )
            )
        case t.Open():
            return pb.ClientFrame(open=_encode_open(frame))
        case t.Cancel():
            return pb.ClientFrame(cancel=pb.Cancel())


def decode_client(message: pb.ClientFrame) -> t.ClientFrame:
    """The frame of a client's message."""
    kind = message.WhichOneof("frame")
    if kind == "draft":
        draft = message.draft
        return t.Draft(
            base=draft.base,
            epoch=draft.epoch,
            tokens=tuple(draft.tokens),
            credit=draft.credit,
            parents=tuple(draft.parents),
            q=tuple(
                t.CompactDistribution(tokens=tuple(accumulate(q.tokens)), weights=q.weights)
                for q in draft.q
            ),
        )
    if kind == "open":
        return _decode_open(message.open)
    if kind == "cancel":
        return t.Cancel()
    raise ProtocolViolation(
        "the frame is empty or of an unknown kind", remedy="send open, draft or cancel"
    )


def _differences(ids: t.Tokens) -> list[int]:
    return [after - before for before, after in pairwise((0, *ids))]


def _encode_open(frame: t.Open) -> pb.Open:
    message = pb.Open(
        protocol_version=frame.protocol_version,
        model=frame.model,
        vocabulary_fingerprint=frame.vocabulary_fingerprint,
        session_id=frame.session_id,
        attempt=frame.attempt,
        generation=frame.generation,
        start=frame.start,
        history=pb.History(
            prefix_length=frame.history.prefix_length,
            prefix_hash=frame.history.prefix_hash,
            tokens=frame.history.tokens,
        ),
        sampling=pb.SamplingParams(
            temperature=frame.sampling.temperature,
            top_k=frame.sampling.top_k,
            top_p=frame.sampling.top_p,
            min_p=frame.sampling.min_p,
            seed=frame.sampling.seed,
            repetition_penalty=frame.sampling.repetition_penalty,
            presence_penalty=frame.sampling.presence_penalty,
            frequency_penalty=frame.sampling.frequency_penalty,
            logit_bias=frame.sampling.logit_bias,
        ),
        verify_mode=_MODES[frame.mode],
        stop=pb.StopRules(
            token_ids=frame.stop.token_ids,
            strings=frame.stop.strings,
            ignore_eos=frame.stop.ignore_eos,
        ),
        limits=pb.Limits(max_tokens=frame.stop.max_tokens, min_tokens=frame.stop.min_tokens),
        required_features=frame.required_features,
        expected_target=frame.expected_target,
        logprobs=frame.logprobs,
    )
    if frame.grammar is not None:
        setattr(message.grammar, frame.grammar.kind, frame.grammar.text)
    return message


def _decode_open(message: pb.Open) -> t.Open:
    if message.verify_mode not in _MODES_BACK:
        raise UnsupportedParameter(
            f"verify_mode {message.verify_mode} is not known here",
            remedy="ask DescribeModel which modes are served",
        )
    kind = message.grammar.WhichOneof("kind")
    sampling = message.sampling
    return t.Open(
        protocol_version=message.protocol_version,
        model=message.model,
        vocabulary_fingerprint=message.vocabulary_fingerprint,
        session_id=message.session_id,
        attempt=message.attempt,
        generation=message.generation,
        start=message.start,
        history=t.History(
            prefix_length=message.history.prefix_length,
            prefix_hash=message.history.prefix_hash,
            tokens=tuple(message.history.tokens),
        ),
        sampling=t.SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p or 1.0,
            min_p=sampling.min_p,
            seed=sampling.seed,
            repetition_penalty=sampling.repetition_penalty or 1.0,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=dict(sampling.logit_bias),
        ),
        mode=_MODES_BACK[message.verify_mode],
        stop=t.StopRules(
            token_ids=tuple(message.stop.token_ids),
            strings=tuple(message.stop.strings),
            ignore_eos=message.stop.ignore_eos,
            max_tokens=message.limits.max_tokens,
            min_tokens=message.limits.min_tokens,
        ),
        grammar=t.Grammar(kind=kind, text=getattr(message.grammar, kind)) if kind else None,
        required_features=tuple(message.required_features),
        expected_target=message.expected_target,
        logprobs=message.logprobs,
    )


# ------------------------------------------------------------------ verifier → client


def encode_server(frame: t.ServerFrame) -> pb.ServerFrame:
    """The message of a verifier's frame."""
    match frame:
        case t.Verdict():
            return pb.ServerFrame(verdict=_encode_verdict(frame))
        case t.Opened():
            return pb.ServerFrame(
                opened=pb.Opened(
                    target=_encode_target(frame.target),
                    limits=_encode_limits(frame.limits),
                    length=frame.length,
                    cached=frame.cached,
                )
            )
        case t.Finished():
            usage = frame.usage
            return pb.ServerFrame(
                finished=pb.Finished(
                    reason=_REASONS[frame.reason],
                    length=frame.length,
                    usage=pb.Usage(
                        prompt_tokens=usage.prompt_tokens,
                        completion_tokens=usage.completion_tokens,
                        passes=usage.passes,
                        drafted=usage.drafted,
                        accepted=usage.accepted,
                        cached_tokens=usage.cached_tokens,
                    ),
                )
            )


def decode_server(message: pb.ServerFrame) -> t.ServerFrame:
    """The frame of a verifier's message."""
    kind = message.WhichOneof("frame")
    if kind == "verdict":
        return _decode_verdict(message.verdict)
    if kind == "opened":
        opened = message.opened
        return t.Opened(
            target=_decode_target(opened.target),
            limits=_decode_limits(opened.limits),
            length=opened.length,
            cached=opened.cached,
        )
    if kind == "finished" and message.finished.reason in _REASONS_BACK:
        finished = message.finished
        return t.Finished(
            reason=_REASONS_BACK[finished.reason],
            length=finished.length,
            usage=t.Usage(
                prompt_tokens=finished.usage.prompt_tokens,
                completion_tokens=finished.usage.completion_tokens,
                passes=finished.usage.passes,
                drafted=finished.usage.drafted,
                accepted=finished.usage.accepted,
                cached_tokens=finished.usage.cached_tokens,
            ),
        )
    raise ProtocolViolation(
        "the verifier sent an empty frame or one of an unknown kind", remedy="update this client"
    )


def _encode_verdict(frame: t.Verdict) -> pb.Verdict:
    message = pb.Verdict(
        base=frame.base,
        accepted=frame.accepted,
        next=frame.next,
        logprobs=[
            pb.TokenLogprobs(
                logprob=p.logprob, top_tokens=p.top_tokens, top_logprobs=p.top_logprobs
            )
            for p in frame.logprobs
        ],
    )
    timing = frame.timing
    if timing.pass_rows:
        message.timing.queue_us = timing.queue_us
        message.timing.pass_us = timing.pass_us
        message.timing.pass_rows = timing.pass_rows
        message.timing.frames = timing.frames
        message.timing.heard_us = timing.heard_us
    if frame.hint is not None:
        message.hint.suggested_k = frame.hint.suggested_k
        message.hint.load_percent = frame.hint.load_percent
    return message


def _decode_verdict(message: pb.Verdict) -> t.Verdict:
    timing, hint = message.timing, message.hint
    return t.Verdict(
        base=message.base,
        accepted=message.accepted,
        next=tuple(message.next),
        timing=t.Timing(
            queue_us=timing.queue_us,
            pass_us=timing.pass_us,
            pass_rows=timing.pass_rows,
            frames=timing.frames,
            heard_us=timing.heard_us,
        )
        if timing.pass_rows
        else t.Timing(),  # of no pass there is none
        hint=t.Hint(suggested_k=hint.suggested_k, load_percent=hint.load_percent)
        if message.HasField("hint")
        else None,
        logprobs=tuple(
            t.TokenLogprobs(
                logprob=p.logprob,
                top_tokens=tuple(p.top_tokens),
                top_logprobs=tuple(p.top_logprobs),
            )
            for p in message.logprobs
        ),
    )


def _encode_target(target: t.TargetIdentity) -> pb.TargetIdentity:
    return pb.TargetIdentity(
        model=target.model,
        digest=target.digest,
        dtype=target.dtype,
        noise_version=target.noise_version,
        vocabulary_fingerprint=target.vocabulary_fingerprint,
        eos_token_ids=target.eos_token_ids,
    )


def _decode_target(message: pb.TargetIdentity) -> t.TargetIdentity:
    return t.TargetIdentity(
        model=message.model,
        digest=message.digest,
        dtype=message.dtype,
        noise_version=message.noise_version,
        vocabulary_fingerprint=message.vocabulary_fingerprint,
        eos_token_ids=tuple(message.eos_token_ids),
    )


def _encode_limits(limits: t.ServingLimits) -> pb.ServingLimits:
    return pb.ServingLimits(
        max_pending=limits.max_pending,
        max_credit=limits.max_credit,
        max_rows=limits.max_rows,
        max_context=limits.max_context,
    )


def _decode_limits(message: pb.ServingLimits) -> t.ServingLimits:
    return t.ServingLimits(
        max_pending=message.max_pending,
        max_credit=message.max_credit,
        max_rows=message.max_rows,
        max_context=message.max_context,
    )


def encode_card(card: t.ModelCard) -> pb.ModelCard:
    """The message of a model card."""
    return pb.ModelCard(
        target=_encode_target(card.target),
        limits=_encode_limits(card.limits),
        verify_modes=[_MODES[mode] for mode in card.verify_modes],
        features=card.features,
        vocabulary_size=card.vocabulary_size,
        protocol_versions=card.protocol_versions,
    )


def decode_card(message: pb.ModelCard) -> t.ModelCard:
    """The model card of a message; verification modes unknown here are left out."""
    return t.ModelCard(
        target=_decode_target(message.target),
        limits=_decode_limits(message.limits),
        vocabulary_size=message.vocabulary_size,
        verify_modes=tuple(_MODES_BACK[m] for m in message.verify_modes if m in _MODES_BACK),
        features=tuple(message.features),
        protocol_versions=tuple(message.protocol_versions),
    )
