"""The checker of clients: ours passes, and one with a fault is told which rule it broke."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cloud_verifier.conformance.case import Case
from cloud_verifier.conformance.outcome import FAILED, PASSED, Outcome
from cloud_verifier.conformance.scenarios import SCENARIOS
from draftwire import codec
from draftwire.errors import DraftwireError, SessionGone, Superseded
from draftwire.testing.record import readable
from draftwire.types import Draft, History, Open, SamplingParams, Verdict
from edge_client import session
from edge_client.branch import Branch, Commit
from edge_client.retry import Patience
from edge_client.session import Generation
from tools.traces import FOLDER, SHOWN, differing, rehearsed, trace

NAMES = [scenario.name for scenario in SCENARIOS]
FAULTS: list[Any] = []


def outcome(name: str) -> Outcome:
    """What comes of our client in a scenario, on virtual time."""
    return Outcome.of(rehearsed(SCENARIOS[NAMES.index(name)]))


def test_scenarios_have_names_and_prompts_of_their_own() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({Case(scenario).task.prompt for scenario in SCENARIOS}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_our_client_passes_and_meets_all_that_a_scenario_is_about(name: str) -> None:
    assert outcome(name) == Outcome(scenario=name, state=PASSED)


def test_the_traces_in_the_documentation_are_what_our_client_sends() -> None:
    assert not differing({FOLDER / f"{name}.json": trace(name) for name in SHOWN})


@pytest.mark.parametrize("name", SHOWN)
def test_the_bytes_of_a_trace_are_its_frames(name: str) -> None:
    entries = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["frames"]
    frames = [entry for entry in entries if "bytes" in entry]
    assert len(frames) > len(entries) / 2
    for entry in frames:
        data = bytes.fromhex(entry["bytes"])
        if entry["from"] == "client":
            message: Any = codec.encode_client(codec.unpack_client(data))
        else:
            message = codec.encode_server(codec.unpack_server(data))
        assert readable(message) == entry["frame"]


# ------------------------------------------------------------------ clients with a fault


def fault(
    scenario: str, rule: int
) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[[pytest.MonkeyPatch], None]]:
    """A change to our client, the scenario that shows it and the rule that it breaks."""

    def add(change: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        FAULTS.append(pytest.param(change, scenario, rule, id=change.__name__))
        return change

    return add


def opening_with(patch: pytest.MonkeyPatch, change: Callable[[Open, int], Open]) -> None:
    """Have every open changed, given how many came before it."""
    before = itertools.count()
    patch.setattr(session, "Open", lambda **fields: change(Open(**fields), next(before)))


@fault("cut", 1)
def the_attempt_does_not_rise(patch: pytest.MonkeyPatch) -> None:
    opening_with(patch, lambda opening, _: replace(opening, attempt=1))


@fault("cut", 1)
def a_session_is_opened_again_under_another_id(patch: pytest.MonkeyPatch) -> None:
    opening_with(patch, lambda opening, before: replace(opening, session_id=bytes([before]) * 16))


@fault("cut", 1)
def the_generation_starts_anew_where_it_is_opened_again(patch: pytest.MonkeyPatch) -> None:
    opening_with(patch, lambda opening, _: replace(opening, start=len(opening.history)))


@fault("sampled", 1)
def the_seed_is_left_out(patch: pytest.MonkeyPatch) -> None:
    opening_with(patch, lambda opening, _: replace(opening, sampling=SamplingParams()))


@fault("cut", 1)
def the_history_holds_a_draft(patch: pytest.MonkeyPatch) -> None:
    def more(opening: Open, before: int) -> Open:
        history = opening.history
        drafted = History(
            tokens=(*history.tokens, 5),
            prefix_length=history.prefix_length,
            prefix_hash=history.prefix_hash,
        )
        return replace(opening, history=drafted) if before else opening

    opening_with(patch, more)


@fault("two-turns", 1)
def a_second_turn_keeps_the_generations_number(patch: pytest.MonkeyPatch) -> None:
    opening_with(patch, lambda opening, _: replace(opening, generation=1))


@fault("restarted", 3)
def a_prefix_is_sent_though_the_session_is_gone(patch: pytest.MonkeyPatch) -> None:
    recover = Generation._recover

    async def recovered(self: Generation, error: DraftwireError) -> None:
        known = self._session.known
        await recover(self, error)
        if isinstance(error, SessionGone):
            self._session.known = known

    patch.setattr(Generation, "_recover", recovered)


@fault("cut", 4)
def the_epoch_is_kept_on_a_new_stream(patch: pytest.MonkeyPatch) -> None:
    def new_stream(self: Branch) -> None:
        self.sent = self.granted = 0

    patch.setattr(Branch, "new_stream", new_stream)


@fault("cut", 5)
def other_parameters_where_it_is_opened_again(patch: pytest.MonkeyPatch) -> None:
    def colder(opening: Open, before: int) -> Open:
        return replace(opening, sampling=SamplingParams(seed=before))

    opening_with(patch, colder)


@fault("cut", 8)
def the_tail_counts_as_sent_on_a_new_stream(patch: pytest.MonkeyPatch) -> None:
    def new_stream(self: Branch) -> None:
        self.epoch = self.granted = 0

    patch.setattr(Branch, "new_stream", new_stream)


@fault("pipelined", 9)
def tokens_are_sent_twice(patch: pytest.MonkeyPatch) -> None:
    take = Branch.take

    def taken(self: Branch, count: int, credit: int) -> Draft:
        draft = take(self, count, credit)
        self.sent -= len(draft.tokens) > 1
        return draft

    patch.setattr(Branch, "take", taken)


@fault("pipelined", 10)
def sent_drafts_are_given_up(patch: pytest.MonkeyPatch) -> None:
    take = Branch.take

    def taken(self: Branch, count: int, credit: int) -> Draft:
        if self.sent > 2:
            self.epoch, self.sent = self.epoch + 1, 0
        return take(self, count, credit)

    patch.setattr(Branch, "take", taken)


@fault("dead-drafts", 11)
def a_rejection_does_not_raise_the_epoch(patch: pytest.MonkeyPatch) -> None:
    reject = Branch._reject

    def rejected(self: Branch) -> None:
        epoch = self.epoch
        reject(self)
        self.epoch = epoch

    patch.setattr(Branch, "_reject", rejected)


@fault("false-verdict", 11)
def whatever_a_verdict_says_is_believed(patch: pytest.MonkeyPatch) -> None:
    apply = Branch.apply

    def applied(self: Branch, verdict: Verdict) -> list[Commit]:
        return apply(self, replace(verdict, base=len(self.committed)))

    patch.setattr(Branch, "apply", applied)


@fault("dead-drafts", 21)
def credit_of_a_dead_frame_counts(patch: pytest.MonkeyPatch) -> None:
    due = Branch.due

    def waits(self: Branch, *args: Any, **options: Any) -> Draft | None:
        return None if self.epoch and not self.sent else due(self, *args, **options)

    patch.setattr(Branch, "due", waits)


@fault("cloud-alone", 21)
def credit_is_stated_once(patch: pytest.MonkeyPatch) -> None:
    due = Branch.due

    def once(self: Branch, *args: Any, **options: Any) -> Draft | None:
        return None if self.granted else due(self, *args, **options)

    patch.setattr(Branch, "due", once)


@fault("stop-string", 22)
def the_text_is_not_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Branch, "truncate", lambda self, length: None)  # noqa: ARG005


@fault("cancel", 23)
def the_reason_is_not_the_verifiers(patch: pytest.MonkeyPatch) -> None:
    take = Generation._take_finished

    def finished(self: Generation, told: Any) -> None:
        take(self, replace(told, reason=type(told.reason).STOP))

    patch.setattr(Generation, "_take_finished", finished)


@fault("limits", 25)
def limits_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    due = Branch.due

    def unbounded(self: Branch, plan: Any, limits: Any, **options: Any) -> Draft | None:
        return due(self, plan, replace(limits, max_pending=99, max_credit=99), **options)

    patch.setattr(Branch, "due", unbounded)


@fault("other-target", 25)
def the_target_is_not_named(patch: pytest.MonkeyPatch) -> None:
    opening_with(patch, lambda opening, _: replace(opening, expected_target=b""))


@fault("superseded", 26)
def a_final_error_is_not_final(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Superseded, "retryable", True)


@fault("busy", 26)
def a_refused_client_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    pause_s = Patience.pause_s
    patch.setattr(Patience, "pause_s", lambda *args, **options: 0 * pause_s(*args, **options))


@fault("draining", 26)
def what_can_be_mended_is_not(patch: pytest.MonkeyPatch) -> None:
    def pause_s(self: Patience, error: DraftwireError, **_: Any) -> float:  # noqa: ARG001
        raise error

    patch.setattr(Patience, "pause_s", pause_s)


@pytest.mark.parametrize(("change", "scenario", "rule"), FAULTS)
def test_a_faulty_client_is_told_its_rule(
    change: Callable[[pytest.MonkeyPatch], None],
    scenario: str,
    rule: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(monkeypatch)
    came = outcome(scenario)
    assert (came.state, came.rule) == (FAILED, rule), came
    assert came.documented == f"docs/protocol.md, rule {rule}"
    assert came.frame or rule in (22, 23, 26)  # which the client's own account shows
