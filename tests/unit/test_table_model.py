"""The table model: every token of the context counts, and its parts fit the protocols."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from draftwire.errors import InvalidRequest
from draftwire.testing.clock import run_virtual
from draftwire.testing.table import EOS, TableModel, TableTokenizer, table_pieces
from draftwire.types import SamplingParams
from edge_client.drafter import Drafter, Proposal, Tokenizer
from edge_client.drafters.table import TableDrafter


def test_a_seed_fixes_the_model_and_its_text() -> None:
    one, same, other = TableModel(seed=5), TableModel(seed=5), TableModel(seed=6)
    assert one.digest == same.digest != other.digest
    assert one.generate([1, 2], 50) == same.generate([1, 2], 50) != other.generate([1, 2], 50)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param([1, 2, 9, 4, 5, 6], id="wrong"),
        pytest.param([1, 2, 4, 5, 6], id="missing"),
        pytest.param([1, 2, 3, 3, 4, 5, 6], id="repeated"),
        pytest.param([1, 3, 2, 4, 5, 6], id="reordered"),
        pytest.param([0, 1, 2, 3, 4, 5, 6], id="preceded"),
    ],
)
def test_one_fault_in_the_context_changes_all_that_follows(fault: list[int]) -> None:
    model = TableModel(vocabulary_size=64, seed=1)
    sound = model.generate([1, 2, 3, 4, 5, 6], 200)
    faulty = model.generate(fault, 200)
    # By chance 1 in 64 is equal: over 40 of 200 has a probability below 1e-25.
    assert np.equal(sound, faulty).sum() < 40


def test_states_pick_rows_evenly() -> None:
    model = TableModel(states=16, seed=2)
    tokens = np.random.default_rng(0).integers(0, 64, 4000).tolist()
    uses: dict[bytes, int] = {}
    state = model.initial
    for token in tokens:
        state = model.extend(state, token)
        row = model.logits(state).tobytes()
        uses[row] = uses.get(row, 0) + 1
    # 250 a row are expected, with a deviation of 15.3.
    assert len(uses) == 16
    assert max(abs(count - 250) for count in uses.values()) < 5 * 15.3


def test_best_agrees_with_the_logits() -> None:
    model = TableModel(sharpness=2.0, seed=3)
    for token in range(64):
        state = model.extend(model.initial, token)
        logits = model.logits(state).astype(np.float64)
        p = np.exp(logits) / np.exp(logits).sum()
        assert model.best(state) == p.argmax()
        assert model.best_probability(state) == pytest.approx(p.max(), rel=1e-5)


def test_logits_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        TableModel().logits(1)[0] = 1


def test_the_end_token_comes_at_the_chosen_rate() -> None:
    model = TableModel(eos_rate=0.02, seed=4)
    assert np.mean(np.equal(model._best, EOS)) == pytest.approx(0.02, abs=0.001)
    lengths = [len(model.generate([1, token], 5000)) for token in range(1, 64)]
    assert 30 < np.mean(lengths) < 80
    assert EOS not in TableModel(eos_rate=0, seed=4).generate([1], 5000)


def test_a_perturbed_model_agrees_in_part_and_follows_the_same_states() -> None:
    model = TableModel(seed=5)
    agreement = [model.agreement(model.perturbed(amount, seed=1)) for amount in (0, 0.1, 0.3, 1)]
    assert agreement[0] == 1
    assert agreement == sorted(agreement, reverse=True)
    assert 0.8 < agreement[1] < 0.95
    assert 0.1 < agreement[3] < 0.5
    assert model.perturbed(0.3, 1).state_of([1, 2]) == model.state_of([1, 2])


@pytest.mark.parametrize("bad", [{"vocabulary_size": 2}, {"states": 0}, {"eos_rate": 1.5}])
def test_impossible_models_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        TableModel(**bad)  # type: ignore[arg-type]


# ------------------------------------------------------------------ tokenizer


def test_the_tokenizer_has_the_shape_of_the_protocol() -> None:
    tokenizer: Tokenizer = TableTokenizer()
    assert tokenizer.eos_token_ids == {EOS}
    assert len(tokenizer.fingerprint) == 32
    assert tokenizer.fingerprint == TableTokenizer().fingerprint
    assert tokenizer.fingerprint != TableTokenizer(321).fingerprint


def test_any_text_survives_encoding() -> None:
    tokenizer = TableTokenizer()
    text = "The déjà vu of 日本語, 🚀 and 👍🏽:\tßé über alles\x00"
    tokens = tokenizer.encode(text)
    assert b"".join(map(tokenizer.piece, tokens)).decode() == text
    assert any(not _is_text(tokenizer.piece(token)) for token in tokens), "no split character"


def test_the_end_token_is_parsed_and_has_no_text() -> None:
    tokenizer = TableTokenizer()
    assert tokenizer.encode("<eos>") == [EOS]
    assert tokenizer.piece(EOS) == b""


def test_chat_is_rendered() -> None:
    tokenizer = TableTokenizer()
    tokens = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert b"".join(map(tokenizer.piece, tokens)) == b"user: hi\nassistant:"


def test_pieces_are_all_different_and_a_larger_vocabulary_extends_a_smaller() -> None:
    assert len(set(table_pieces(5000))) == 5000
    assert table_pieces(5000)[:64] == table_pieces(64)
    assert any(not _is_text(piece) for piece in table_pieces(64))


def test_a_small_vocabulary_refuses_what_it_cannot_spell() -> None:
    with pytest.raises(InvalidRequest, match="can't spell"):
        TableTokenizer(64).encode("日")


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


# ------------------------------------------------------------------ drafter

GREEDY = SamplingParams()
WARM = SamplingParams(temperature=1.0, seed=11)


def _draft(drafter: Drafter, sampling: SamplingParams, count: int) -> list[Proposal]:
    """What a drafter proposes after the prompt 1, 2, 3, one token after the other."""

    async def main() -> list[Proposal]:
        await drafter.begin(sampling, [])
        return [await drafter.draft(0, [1, 2, 3])] + [
            await drafter.draft(3 + done, []) for done in range(1, count)
        ]

    return asyncio.run(main())


def _tokens(proposals: list[Proposal]) -> list[int]:
    return [proposal.token for proposal in proposals]


def test_a_drafter_says_what_its_model_says() -> None:
    model = TableModel(seed=7)
    drafter = TableDrafter(model)
    proposals = _draft(drafter, GREEDY, 20)
    assert _tokens(proposals) == model.generate([1, 2, 3], 20)
    assert drafter.context == (1, 2, 3, *_tokens(proposals))
    assert all(0 < proposal.confidence <= 1 for proposal in proposals)


def test_rolling_back_leaves_no_trace() -> None:
    model = TableModel(seed=7)
    drafter = TableDrafter(model)
    _draft(drafter, GREEDY, 20)

    async def main() -> Proposal:
        return await drafter.draft(6, [9, 8])

    proposal = asyncio.run(main())
    context = [1, 2, 3, *model.generate([1, 2, 3], 3), 9, 8]
    assert proposal.token == model.generate(context, 1)[0]
    assert drafter.context == (*context, proposal.token)


def test_a_new_generation_is_told_what_the_context_shares() -> None:
    drafter = TableDrafter(TableModel(seed=7))
    first, *_ = _draft(drafter, GREEDY, 1)
    for context, shared in [
        ([], 0),
        ([1, 2, 4], 2),
        ([1, 2, 3], 3),
        ([1, 2, 3, first.token, 9], 4),
    ]:
        assert asyncio.run(drafter.begin(GREEDY, context)) == shared


def test_a_cancelled_draft_leaves_no_proposal() -> None:
    drafter = TableDrafter(TableModel(), draft_time_s=1)

    async def main() -> None:
        async with asyncio.timeout(0.5):
            await drafter.draft(0, [1, 2])

    with pytest.raises(TimeoutError):
        run_virtual(main())
    assert drafter.context == (1, 2)


def test_impossible_drafts_are_refused_and_change_nothing() -> None:
    drafter = TableDrafter(TableModel(), max_context=8)
    _draft(drafter, GREEDY, 5)
    context = drafter.context
    assert len(context) == 8
    for keep, tokens, fault in [(9, [], "keep is 9"), (8, [], "past"), (4, [1] * 4, "past")]:
        with pytest.raises(InvalidRequest, match=fault):
            asyncio.run(drafter.draft(keep, tokens))
    assert drafter.context == context


def test_noise_is_shared_by_position() -> None:
    model = TableModel(sharpness=0.0, seed=7)  # the noise alone decides
    drafts = [_tokens(_draft(TableDrafter(model), WARM, 40)) for _ in range(2)]
    other = _tokens(_draft(TableDrafter(TableModel(sharpness=0.0, seed=8)), WARM, 40))
    assert drafts[0] == drafts[1] == other
    assert len(set(other)) > 10


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_always_wrong_is_wrong_about_every_token(sampling: SamplingParams) -> None:
    model = TableModel(vocabulary_size=3, eos_rate=0.3, seed=7)
    wrong, right = TableDrafter(model, always_wrong=True), TableDrafter(model)

    async def main() -> None:
        await wrong.begin(sampling, [])
        await right.begin(sampling, [])
        for kept in range(200):
            context = wrong.context[:kept]
            proposals = [await drafter.draft(0, context) for drafter in (wrong, right)]
            assert proposals[0].token in {1, 2} - {proposals[1].token}
            assert proposals[0].confidence == proposals[1].confidence

    asyncio.run(main())


def test_drafting_takes_its_time_on_the_loop_clock() -> None:
    async def main() -> float:
        drafter = TableDrafter(TableModel(), draft_time_s=0.024)
        for kept in range(10):
            await drafter.draft(kept, [])
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(0.24)


def test_an_instant_drafter_lets_others_run() -> None:
    async def main() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        drafter = TableDrafter(TableModel())
        for kept in range(10):
            await drafter.draft(kept, [])
        task.cancel()
        await asyncio.wait([task])
        return turns

    assert run_virtual(main()) >= 10
