"""What a key may use, on a clock of its own."""

from __future__ import annotations

import pytest

from cloud_verifier.quotas import OPENS_WITH_S, Account, Quota
from draftwire.errors import QuotaExceeded

ONE, TWO, THREE = (bytes([n] * 16) for n in (1, 2, 3))


def test_without_bounds_nothing_is_refused() -> None:
    account = Account(Quota(), 0.0)
    for n in range(100):
        account.open(bytes([n] * 16), 0.0)
    account.used(10**9, 10**9, 0.0)
    account.check_tokens(0.0)
    assert account.may_waste(0.0)


def test_as_many_sessions_as_the_quota_says_are_open_at_once() -> None:
    account = Account(Quota(sessions=2), 0.0)
    account.open(ONE, 0.0)
    account.open(TWO, 0.0)
    with pytest.raises(QuotaExceeded, match="2 generations"):
        account.open(THREE, 0.0)
    account.close(ONE)
    account.open(THREE, 0.0)


def test_a_session_that_is_opened_again_counts_once_until_both_streams_have_ended() -> None:
    account = Account(Quota(sessions=1), 0.0)
    account.open(ONE, 0.0)
    account.open(ONE, 0.0)  # the earlier stream has not been seen to break yet
    account.close(ONE)
    with pytest.raises(QuotaExceeded):
        account.open(TWO, 0.0)
    account.close(ONE)
    account.open(TWO, 0.0)


def test_tokens_come_evenly_and_a_minutes_worth_may_be_saved() -> None:
    account = Account(Quota(tokens_per_minute=600), 0.0)
    account.used(599, 0, 0.0)
    account.check_tokens(0.0)
    account.used(11, 0, 0.0)  # overdrawn by ten: what was computed is counted
    with pytest.raises(QuotaExceeded, match="600 tokens per minute") as caught:
        account.check_tokens(0.0)
    assert "in 1 s" in caught.value.remedy
    account.check_tokens(1.0)
    account.used(600, 0, 1e6)  # what is saved does not grow beyond a minute's
    with pytest.raises(QuotaExceeded):
        account.check_tokens(1e6, worth_s=0.1)


def test_a_generation_opens_with_some_seconds_worth_so_that_it_gets_somewhere() -> None:
    account = Account(Quota(tokens_per_minute=600), 0.0)
    account.used(600, 0, 0.0)
    with pytest.raises(QuotaExceeded):
        account.open(ONE, OPENS_WITH_S - 0.1)
    account.open(ONE, OPENS_WITH_S)


def test_a_refused_open_counts_nothing() -> None:
    account = Account(Quota(sessions=1, tokens_per_minute=60), 0.0)
    account.used(60, 0, 0.0)
    with pytest.raises(QuotaExceeded):
        account.open(ONE, 0.0)
    account.open(TWO, 60.0)


def test_wasted_drafts_have_a_bound_of_their_own() -> None:
    account = Account(Quota(wasted_drafts_per_minute=60), 0.0)
    account.used(10**6, 59, 0.0)
    assert account.may_waste(0.0)
    account.used(0, 1, 0.0)
    assert not account.may_waste(0.0)
    assert account.may_waste(0.1)


def test_a_new_quota_forgives_what_was_used_but_forgets_no_session() -> None:
    account = Account(Quota(sessions=1, tokens_per_minute=60), 0.0)
    account.open(ONE, 0.0)
    account.used(60, 0, 0.0)
    account.renew(Quota(sessions=1, tokens_per_minute=120), 0.0)
    account.check_tokens(0.0)
    with pytest.raises(QuotaExceeded, match="1 generations"):
        account.open(TWO, 0.0)
