"""Shown before it is final: whatever comes, the deltas add up to what stands there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from draftwire.stopping import StopSearch
from draftwire.types import StopRules, Verdict
from edge_client.branch import Branch, Commit, Origin
from edge_client.output import Output
from edge_client.results import Delta, Kind
from edge_client.tentative import Shown, Tentative, reduce

ROCKET = "🚀".encode()
PIECES = [b"", b"a", b"b", b"<", b"ab", b"a<b", b"\xc3", b"\xa9", ROCKET[:1], ROCKET[1:], b"b\xc3"]
PROMPT = [1, 2]


class Pieces:
    """A tokenizer whose token ids are places in `PIECES`."""

    fingerprint = b""
    eos_token_ids: frozenset[int] = frozenset()

    def piece(self, token: int) -> bytes:
        return PIECES[token]

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    encode_chat = encode


class Device:
    """A branch, its output, and all deltas that an app has had of it."""

    def __init__(self, stop: StopRules) -> None:
        self.stop = stop
        self.branch = Branch(PROMPT.copy())
        self.output = Output(Pieces(), stop)
        self.tentative = Tentative()
        self.search = StopSearch(stop.strings, stop.min_tokens)
        self.kind = Kind.DRAFTED
        self.deltas: list[Delta] = []
        self.shown = Shown()
        self.retracted = 0

    def draft(self, token: int) -> None:
        self.branch.push(token, 0.5)
        self.show(self.output.take((), ()))

    def send(self, count: int) -> None:
        self.branch.take(min(count, self.branch.unsent), credit=1)

    def drop(self, _: int) -> None:
        self.branch.drop_unsent()
        self.show(self.output.take((), ()))

    def judge(self, verdict: tuple[int, Sequence[int]]) -> None:
        """A verdict, which ends where a stop string does."""
        count, following = verdict
        accepted = self.branch.tail[: min(count, self.branch.sent)]
        for place, token in enumerate([*accepted, *following], start=1):
            if self.search.feed(PIECES[token]):
                accepted, following = accepted[:place], following[: max(0, place - len(accepted))]
                break
        base = len(self.branch.committed)
        commits = self.branch.apply(
            Verdict(base=base, accepted=len(accepted), next=tuple(following))
        )
        self.show(self.output.take(commits, ()))

    def cut_off(self, away: bool) -> None:
        self.kind = Kind.UNVERIFIED if away else Kind.DRAFTED
        self.branch.new_stream()

    def show(self, given: Delta) -> None:
        self.take(self.tentative.change(given, self.output.preview(self.branch.tail), self.kind))
        assert self.shown.final == written(self.said, self.stop)
        assert self.shown.text == written(self.said + self.branch.tail, self.stop)

    def end(self, told: bool) -> None:
        """The end as the verifier tells it, or as a cancel leaves it."""
        length = len(self.said)
        if self.search.found is not None:
            length = self.search.decided
        given = self.output.end(length, told=told)
        self.take(self.tentative.change(given, (), self.kind))

    def take(self, deltas: list[Delta]) -> None:
        """Each delta says what is true of the text it is applied to."""
        for delta in deltas:
            shown, ids = self.shown, [token.id for token in delta.tokens]
            before = shown.tentative_token_ids
            if delta.kind is Kind.RETRACTED:
                assert shown.tentative.endswith(delta.text)
                assert before[-len(ids) :] == ids
                self.retracted += len(ids)
            elif delta.kind is Kind.COMMITTED:
                short = min(len(shown.tentative), len(delta.text))
                assert shown.tentative[:short] == delta.text[:short]
                assert before[: len(ids)] == ids[: len(before)]
            else:
                assert delta.kind is self.kind
            shown.apply(delta)
        assert self.shown.tentative_token_ids == [token.id for token in self.tentative.tokens]
        assert self.retracted == self.tentative.retracted
        self.deltas += deltas

    @property
    def said(self) -> list[int]:
        return self.branch.committed[len(PROMPT) :]


def written(tokens: Sequence[int], stop: StopRules) -> str:
    """What an app would have of these tokens, were they committed at once and no more known."""
    commits = [Commit(token, Origin.CLOUD) for token in tokens]
    return Output(Pieces(), stop).take(commits, ()).text


tokens = st.integers(0, len(PIECES) - 1)
acts = st.lists(
    st.one_of(
        st.tuples(st.just(Device.draft), tokens),
        st.tuples(st.just(Device.draft), tokens),
        st.tuples(st.just(Device.send), st.integers(0, 4)),
        st.tuples(
            st.just(Device.judge), st.tuples(st.integers(0, 4), st.lists(tokens, max_size=3))
        ),
        st.tuples(st.just(Device.drop), st.just(0)),
        st.tuples(st.just(Device.cut_off), st.booleans()),
    ),
    max_size=24,
)
stops = st.builds(
    StopRules,
    strings=st.lists(st.text(alphabet="ab<é🚀", min_size=1, max_size=3), max_size=2),
    min_tokens=st.integers(0, 3),
)


@given(acts, stops, st.booleans())
def test_at_every_moment_the_deltas_add_up_to_the_committed_text_and_the_drafts_after_it(
    acts: list[tuple[Any, Any]], stop: StopRules, told: bool
) -> None:
    device = Device(stop)
    for act, argument in acts:
        if device.search.found is None:
            act(device, argument)
    device.end(told)
    assert device.shown.tentative == ""
    assert reduce(device.deltas) == device.output.text
    committed = [delta for delta in device.deltas if delta.kind is Kind.COMMITTED]
    assert "".join(delta.text for delta in committed) == device.output.text
    given = [token.id for delta in committed for token in delta.tokens]
    assert given == device.said[: len(given)] == [token.id for token in device.output.tokens]
