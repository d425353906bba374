"""Frames survive the wire, what is not a frame is an error of ours, and rounds are small."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.codec import (
    decode_card,
    encode_card,
    encode_client,
    pack_client,
    pack_server,
    pad,
    unpack_client,
    unpack_server,
)
from draftwire.errors import InvalidRequest, ProtocolViolation, UnsupportedParameter
from draftwire.types import (
    MAX_COUNT,
    MAX_TOKEN_ID,
    Cancel,
    ClientFrame,
    CompactDistribution,
    Draft,
    Finished,
    FinishReason,
    Grammar,
    Hint,
    History,
    ModelCard,
    Open,
    Opened,
    SamplingParams,
    ServerFrame,
    ServingLimits,
    StopRules,
    TargetIdentity,
    Timing,
    TokenLogprobs,
    Usage,
    Verdict,
    VerifyMode,
)
from draftwire.v1 import verifier_pb2 as pb

# ------------------------------------------------------------------ padding


@pytest.mark.parametrize("multiple", [16, 100, 128, 4096])
def test_a_padded_frame_is_as_long_as_asked_and_means_the_same(multiple: int) -> None:
    for count in range(300):
        frame = Draft(base=1, epoch=0, tokens=(7,) * count, credit=1)
        message = encode_client(frame)
        bare = message.ByteSize()
        pad(message, multiple)
        data = message.SerializeToString()
        assert len(data) % multiple == 0
        assert len(data) < bare + 3 * multiple
        assert unpack_client(data) == frame


def test_without_padding_nothing_is_added() -> None:
    message = encode_client(Draft(base=1, epoch=0))
    bare = message.SerializeToString()
    pad(message, 0)
    assert message.SerializeToString() == bare


# ------------------------------------------------------------------ every frame there can be

counts = st.integers(0, MAX_COUNT)
ones = st.integers(1, MAX_COUNT)
token = st.integers(0, MAX_TOKEN_ID)
tokens = st.lists(token, max_size=8).map(tuple)
digests = st.binary(max_size=32)
numbers = st.floats(allow_nan=False, allow_infinity=False)
float32 = st.floats(width=32, allow_nan=False)


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=4).map(tuple)


sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=counts,
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.floats(0.01, 100),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(token, st.floats(-100, 100), max_size=4),
)
lengths = st.one_of(
    st.tuples(st.just(0), counts),
    st.tuples(counts, counts).map(lambda pair: (max(pair), min(pair))),
)
stop = st.builds(
    lambda length, **rules: StopRules(max_tokens=length[0], min_tokens=length[1], **rules),
    length=lengths,
    token_ids=tokens,
    strings=tuples(st.text(min_size=1)),
    ignore_eos=st.booleans(),
)
grammars = st.builds(
    Grammar, kind=st.sampled_from(["json_schema", "regex", "lark"]), text=st.text()
)


@st.composite
def opens(draw: st.DrawFn) -> Open:
    prefix = draw(counts)
    after = draw(st.lists(token, min_size=1, max_size=6).map(tuple))
    history = History(
        tokens=after, prefix_length=prefix, prefix_hash=draw(st.binary(min_size=16, max_size=16))
        if prefix
        else b""
    )  # fmt: skip
    return Open(
        session_id=draw(st.binary(min_size=16, max_size=16)),
        attempt=draw(ones),
        generation=draw(ones),
        start=draw(st.integers(1, min(len(history), MAX_COUNT))),
        history=history,
        vocabulary_fingerprint=draw(digests),
        sampling=draw(sampling),
        stop=draw(stop),
        mode=draw(st.sampled_from(VerifyMode)),
        model=draw(st.text()),
        grammar=draw(st.none() | grammars),
        required_features=draw(tuples(st.text())),
        expected_target=draw(digests),
        logprobs=draw(counts),
        protocol_version=draw(counts),
    )


@st.composite
def distributions(draw: st.DrawFn) -> CompactDistribution:
    weights = draw(st.binary(min_size=1, max_size=5).filter(any))
    ids = draw(st.sets(token, min_size=len(weights), max_size=len(weights)))
    return CompactDistribution(tokens=tuple(sorted(ids)), weights=weights)


drafts = st.builds(
    Draft,
    base=counts,
    epoch=counts,
    tokens=tokens,
    credit=counts,
    parents=tokens,
    q=tuples(distributions()),
)
targets = st.builds(
    TargetIdentity,
    model=st.text(),
    digest=digests,
    dtype=st.text(),
    vocabulary_fingerprint=digests,
    noise_version=counts,
    eos_token_ids=tokens,
)
limits = st.builds(
    ServingLimits,
    max_context=st.integers(2, MAX_COUNT),
    max_pending=ones,
    max_credit=ones,
    max_rows=st.integers(2, MAX_COUNT),
)
cards = st.builds(
    ModelCard,
    target=targets,
    limits=limits,
    vocabulary_size=counts,
    verify_modes=tuples(st.sampled_from(VerifyMode)),
    features=tuples(st.text()),
    protocol_versions=tuples(counts),
)
verdicts = st.builds(
    Verdict,
    base=counts,
    accepted=counts,
    next=tokens,
    timing=st.just(Timing())
    | st.builds(Timing, queue_us=counts, pass_us=counts, pass_rows=ones),  # a pass has rows
    hint=st.none() | st.builds(Hint, suggested_k=counts, load_percent=counts),
    logprobs=tuples(
        st.builds(TokenLogprobs, logprob=float32, top_tokens=tokens, top_logprobs=tuples(float32))
    ),
)
usages = st.builds(
    Usage,
    prompt_tokens=counts,
    completion_tokens=counts,
    passes=counts,
    drafted=counts,
    accepted=counts,
    cached_tokens=counts,
)
finishes = st.builds(Finished, reason=st.sampled_from(FinishReason), length=counts, usage=usages)
openeds = st.builds(Opened, target=targets, limits=limits, length=counts, cached=counts)


@settings(max_examples=60)
@given(opens() | drafts | st.just(Cancel()))
def test_a_clients_frame_survives_the_wire(frame: ClientFrame) -> None:
    assert unpack_client(pack_client(frame)) == frame


@given(verdicts | openeds | finishes)
def test_a_verifiers_frame_survives_the_wire(frame: ServerFrame) -> None:
    assert unpack_server(pack_server(frame)) == frame


@given(cards)
def test_a_model_card_survives_the_wire(card: ModelCard) -> None:
    assert decode_card(encode_card(card)) == card


def test_nothing_but_the_defaults_is_left_out() -> None:
    """A field that neither side encodes would survive the tests above at its default only."""
    names = {field.name for field in pb.Open.DESCRIPTOR.fields}
    frame = pb.ClientFrame.FromString(
        pack_client(
            Open(
                session_id=bytes(16),
                attempt=1,
                generation=1,
                start=1,
                history=History(tokens=(1,)),
                vocabulary_fingerprint=b"f",
                sampling=SamplingParams(seed=1),
                stop=StopRules(ignore_eos=True, max_tokens=1),
                model="m",
                grammar=Grammar(kind="regex", text="a"),
                required_features=("x",),
                expected_target=b"t",
                logprobs=1,
            )
        )
    )
    assert {field.name for field, _ in frame.open.ListFields()} == names


# ------------------------------------------------------------------ what is not a frame


def message(**fields: Any) -> bytes:
    """A valid open in which some fields are replaced."""
    values: dict[str, Any] = {
        "session_id": bytes(16),
        "attempt": 1,
        "generation": 1,
        "start": 1,
        "history": pb.History(tokens=[1]),
        "verify_mode": pb.VERIFY_MODE_MATCH,
    }
    return pb.ClientFrame(open=pb.Open(**(values | fields))).SerializeToString()


def test_the_message_that_the_next_tests_break_is_whole() -> None:
    assert isinstance(unpack_client(message()), Open)


@pytest.mark.parametrize("unpack", [unpack_client, unpack_server])
@pytest.mark.parametrize(
    "data",
    [b"", b"\x7a\x00", b"\xff", b"\x0a\x05abc"],
    ids=["empty", "a kind of a later version", "no message", "cut short"],
)
def test_what_is_no_frame_is_a_violation(unpack: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        unpack(data)


def test_whatever_the_bytes_are_only_errors_of_ours_come_out() -> None:
    rng = random.Random(1)
    whole = message(
        sampling=pb.SamplingParams(temperature=0.7, top_p=0.9, logit_bias={3: 1.5}),
        grammar=pb.Grammar(regex="a*"),
        stop=pb.StopRules(token_ids=[7], strings=["x"]),
    )
    refused = 0
    for _ in range(5000):
        data = bytearray(rng.choice([whole, pack_client(Draft(base=300, epoch=1, tokens=(1, 2)))]))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
        for unpack in (unpack_client, unpack_server):
            try:
                unpack(bytes(data))
            except (ProtocolViolation, InvalidRequest, UnsupportedParameter):
                refused += 1
    assert 1000 < refused < 9999  # neither all nor hardly any


@pytest.mark.parametrize("mode", [0, 4, 99])
def test_an_unknown_mode_is_refused_by_its_number(mode: int) -> None:
    with pytest.raises(UnsupportedParameter, match=f"verify_mode {mode}"):
        unpack_client(message(verify_mode=mode))


@pytest.mark.parametrize("reason", [0, 4, 99])
def test_an_unknown_finish_reason_is_a_violation(reason: int) -> None:
    finished = pb.ServerFrame(finished=pb.Finished(reason=reason))  # type: ignore[arg-type]
    with pytest.raises(ProtocolViolation):
        unpack_server(finished.SerializeToString())


def test_modes_unknown_to_a_client_are_left_out_of_the_card() -> None:
    card = pb.ModelCard(limits=pb.ServingLimits(max_context=9, max_pending=1, max_credit=1))
    card.limits.max_rows = 2
    card.verify_modes.extend([pb.VERIFY_MODE_MATCH, 99])  # type: ignore[list-item]
    assert decode_card(card).verify_modes == (VerifyMode.MATCH,)


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": bytes(15)},
        {"session_id": b""},
        {"attempt": 0},
        {"generation": 0},
        {"start": 0},
        {"start": 2},
        {"history": pb.History()},
        {"history": pb.History(tokens=[2**31])},
        {"history": pb.History(tokens=[1], prefix_length=3)},
        {"history": pb.History(tokens=[1], prefix_hash=bytes(16))},
        {"history": pb.History(tokens=[1], prefix_length=3, prefix_hash=bytes(15))},
        {"sampling": pb.SamplingParams(temperature=-1)},
        {"sampling": pb.SamplingParams(temperature=float("nan"))},
        {"sampling": pb.SamplingParams(temperature=float("inf"))},
        {"sampling": pb.SamplingParams(top_p=1.5)},
        {"sampling": pb.SamplingParams(top_p=-0.5)},
        {"sampling": pb.SamplingParams(min_p=2)},
        {"sampling": pb.SamplingParams(repetition_penalty=-1)},
        {"sampling": pb.SamplingParams(repetition_penalty=1e-30)},
        {"sampling": pb.SamplingParams(frequency_penalty=2.5)},
        {"sampling": pb.SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0))},
        {"limits": pb.Limits(max_tokens=3, min_tokens=4)},
        {"sampling": pb.SamplingParams(presence_penalty=float("nan"))},
        {"sampling": pb.SamplingParams(logit_bias={1: float("inf")})},
        {"sampling": pb.SamplingParams(logit_bias={2**31: 1.0})},
        {"stop": pb.StopRules(token_ids=[2**31])},
        {"stop": pb.StopRules(strings=[""])},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        unpack_client(message(**fields))


@pytest.mark.parametrize(
    "draft",
    [
        pb.Draft(tokens=[2**31]),
        pb.Draft(parents=[2**31]),
        pb.Draft(tokens=[1], q=[pb.CompactDistribution(tokens=[1], weights=b"\x01\x02")]),
        pb.Draft(tokens=[1], q=[pb.CompactDistribution(tokens=[1], weights=b"\x00")]),
        pb.Draft(tokens=[1], q=[pb.CompactDistribution()]),
        pb.Draft(tokens=[1], q=[pb.CompactDistribution(tokens=[1, 0], weights=b"\x01\x02")]),
        pb.Draft(tokens=[1], q=[pb.CompactDistribution(tokens=[1] * 65, weights=b"\x01" * 65)]),
        pb.Draft(tokens=[1], q=[pb.CompactDistribution(tokens=[2**31], weights=b"\x01")]),
    ],
    ids=["token", "parent", "weights", "all zero", "empty", "twice", "many", "far"],
)
def test_a_draft_out_of_range_is_refused(draft: pb.Draft) -> None:
    with pytest.raises(InvalidRequest):
        unpack_client(pb.ClientFrame(draft=draft).SerializeToString())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Draft(base=2**32, epoch=0),
        lambda: Draft(base=0, epoch=2**32),
        lambda: Draft(base=0, epoch=0, credit=2**32),
        lambda: Draft(base=-1, epoch=0),
        lambda: StopRules(max_tokens=2**32),
        lambda: StopRules(min_tokens=2**32),
        lambda: SamplingParams(top_k=2**32),
        lambda: SamplingParams(seed=2**64),
        lambda: SamplingParams(seed=-1),
        lambda: Grammar(kind="bnf", text=""),
        lambda: Verdict(base=-1, accepted=0, next=()),
    ],
)
def test_what_the_wire_can_not_carry_can_not_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest):
        make()


def test_fields_a_client_leaves_out_mean_what_the_contract_says() -> None:
    frame = unpack_client(message())
    assert isinstance(frame, Open)
    assert frame.sampling == SamplingParams()
    assert frame.stop == StopRules()
    assert frame.grammar is None
    assert frame.model == ""


# ------------------------------------------------------------------ sizes


def round_bytes(
    rng: random.Random, vocabulary: range, base: int, drafted: int, accepted: int
) -> int:
    """Payload of one round in match mode, both directions: a draft and its verdict."""
    ids = rng.choices(vocabulary, k=drafted + 1)
    up = Draft(base=base, epoch=rng.randrange(100), tokens=tuple(ids[:drafted]), credit=1)
    down = Verdict(
        base=base,
        accepted=accepted,
        next=(ids[drafted],),
        timing=Timing(
            queue_us=rng.randrange(20_000), pass_us=rng.randrange(300_000), pass_rows=512
        ),
    )
    return len(pack_client(up)) + len(pack_server(down))


@pytest.mark.parametrize("base", [0, 100, 20_000, 100_000])
@pytest.mark.parametrize(
    "vocabulary", [range(2**14, 2**16), range(2**16, 2**17)], ids=["16 bits", "17 bits"]
)
def test_a_committed_token_costs_at_most_16_bytes(vocabulary: range, base: int) -> None:
    rng, acceptance, drafted = random.Random(1), 0.9, 5
    total, committed = 0, 0
    for _ in range(2000):
        accepted = 0
        while accepted < drafted and rng.random() < acceptance:
            accepted += 1
        total += round_bytes(rng, vocabulary, base, drafted, accepted)
        committed += accepted + 1
    assert total / committed <= 16


def test_the_largest_round_of_five_drafts_is_under_16_bytes_a_token_too() -> None:
    largest = max(
        round_bytes(random.Random(seed), range(2**16, 2**17), 100_000, 5, 5) for seed in range(200)
    )
    assert largest / 6 <= 16


def test_the_clouds_own_tokens_cost_little_more_than_their_verdict() -> None:
    own = Verdict(
        base=100_000,
        accepted=0,
        next=(131_071,),
        timing=Timing(queue_us=20_000, pass_us=300_000, pass_rows=512),
    )
    assert len(pack_server(own)) <= 24


def test_a_timing_of_no_pass_is_none_and_takes_no_bytes() -> None:
    message = pb.ServerFrame(verdict=pb.Verdict(base=4, timing=pb.Timing(queue_us=5)))
    verdict = unpack_server(message.SerializeToString())
    assert verdict == Verdict(base=4, accepted=0, next=(), timing=Timing())
    assert unpack_server(pack_server(verdict)) == verdict


def test_an_open_again_does_not_grow_with_the_history() -> None:
    history = History(tokens=(131_071,), prefix_length=100_000, prefix_hash=bytes(range(16)))
    frame = Open(
        session_id=bytes(range(16)),
        attempt=9,
        generation=9,
        start=90_000,
        history=history,
        vocabulary_fingerprint=bytes(32),
        sampling=SamplingParams(temperature=0.7, top_p=0.9, seed=2**63),
        stop=StopRules(max_tokens=20_000),
    )
    assert len(pack_client(frame)) <= 180


@pytest.mark.parametrize(("vocabulary", "most"), [(49_152, 58), (151_936, 64)])
def test_a_stated_draft_takes_few_bytes(vocabulary: int, most: int) -> None:
    """The draft's own id apart, whichever 16 tokens its distribution names: here as far apart and
    as high as they can be, so that their differences take most."""
    step = vocabulary // 16
    ids = tuple(vocabulary - 1 - step * place for place in range(15, -1, -1))
    q = CompactDistribution(tokens=ids, weights=bytes(range(240, 256)))
    sizes = [
        len(pack_client(Draft(base=1, epoch=0, tokens=(1,) * count, q=(q,) * count)))
        for count in (1, 2)
    ]
    assert sizes[1] - sizes[0] - 1 <= most


def test_half_of_the_differences_may_be_large_at_most() -> None:
    """The worst case of a vocabulary of 151,936: nine differences of three bytes fit into it."""
    large, small = 16_384, 128
    ids = tuple(large * place for place in range(1, 10))
    ids += tuple(ids[-1] + small * place for place in range(1, 8))
    assert ids[-1] < 151_936
    assert ids[-1] + large - small > 151_936
    frame = Draft(
        base=1, epoch=0, tokens=(1,), q=(CompactDistribution(tokens=ids, weights=b"\x01" * 16),)
    )
    plain = replace(frame, q=())
    assert len(pack_client(frame)) - len(pack_client(plain)) <= 64
