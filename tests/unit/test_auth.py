"""API keys: known by their hash, read again when the file changes, never shown."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.auth import Keys, new_key, parse
from cloud_verifier.quotas import Quota
from draftwire.errors import InvalidRequest, Unauthenticated

KEY, LINE = new_key("phone-7")
TODAY = 1_800_000_000.0  # 2027-01-15


class World:
    """A keys file and the time, which `write` moves so far that the change is seen."""

    def __init__(self, path: Path, *lines: str) -> None:
        self.path = path
        self.at = 0.0
        self.write(*lines)
        self.keys = Keys(path, now=lambda: TODAY + self.at, clock=lambda: self.at)

    def write(self, *lines: str) -> None:
        self.path.write_text("\n".join(lines))
        self.at += 2.0
        os.utime(self.path, (TODAY + self.at, TODAY + self.at))

    def admit(self, key: str = KEY) -> str:
        return self.keys.admit(f"Bearer {key}").name


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "keys", "# ours", "", LINE)


def with_(line: str = LINE, **changes: Any) -> str:
    return json.dumps(json.loads(line) | changes)


def test_a_key_names_its_owner(world: World) -> None:
    assert world.admit() == "phone-7"


def test_the_file_holds_a_hash_and_not_the_key() -> None:
    assert KEY not in LINE
    assert json.loads(LINE)["sha256"] == hashlib.sha256(KEY.encode()).hexdigest()
    assert len(KEY.rpartition("_")[2]) * 4 == 256  # bits


def test_no_two_keys_are_alike_even_of_one_name() -> None:
    assert new_key("phone-7")[0] != KEY


def test_what_is_known_of_a_key_does_not_show_its_hash(world: World) -> None:
    assert json.loads(LINE)["sha256"] not in repr(world.keys.admit(f"Bearer {KEY}"))


@pytest.mark.parametrize(
    "header",
    {
        "missing": "",
        "no scheme": KEY,
        "another scheme": f"Basic {KEY}",
        "empty": "Bearer ",
        "wrong": f"Bearer {KEY[:-1]}{'0' if KEY[-1] != '0' else '1'}",
        "another name": f"Bearer {KEY.replace('phone-7', 'phone-8')}",
        "longer": f"Bearer {KEY}0",
        "its hash": f"Bearer {json.loads(LINE)['sha256']}",
    }.items(),
    ids=lambda case: case[0],
)
def test_whoever_has_no_key_of_ours_is_refused(world: World, header: tuple[str, str]) -> None:
    with pytest.raises(Unauthenticated) as caught:
        world.keys.admit(header[1])
    assert caught.value.remedy
    assert KEY not in str(caught.value)


def test_a_key_ends_when_it_says(world: World) -> None:
    world.write(with_(expires="2027-01-15T09:00:00+01:00"))  # 08:00:00 UTC is TODAY
    with pytest.raises(Unauthenticated, match="expired on 2027-01-15"):
        world.admit()
    world.write(with_(expires="2027-01-15T09:01:00+01:00"))
    key = world.keys.admit(f"Bearer {KEY}")
    world.at += 60.0
    with pytest.raises(Unauthenticated, match="expired"):
        world.keys.recheck(key)


def test_a_key_that_is_taken_out_is_revoked_at_once(world: World) -> None:
    key = world.keys.admit(f"Bearer {KEY}")
    world.write("# nobody")
    with pytest.raises(Unauthenticated, match="revoked"):
        world.keys.recheck(key)
    with pytest.raises(Unauthenticated, match="not known"):
        world.admit()


def test_two_keys_of_one_name_let_one_take_over_from_the_other(world: World) -> None:
    later, line = new_key("phone-7")
    world.write(LINE, line)
    assert world.admit() == world.admit(later) == "phone-7"


def test_a_file_that_is_broken_later_changes_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(LINE, "{")
    with caplog.at_level(logging.ERROR):
        assert world.admit() == "phone-7"
        assert world.admit() == "phone-7"
    assert len(caplog.records) == 1
    assert "line 2 of the keys file" in caplog.text


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"name": "a b"}, "'a b'"),
        ({"name": None}, "None"),
        ({"name": "under_score"}, "under_score"),
        ({"sha256": "abc"}, "64 hex"),
        ({"expires": "2027-01-15"}, "time zone"),
        ({"expires": "tomorrow"}, "tomorrow"),
        ({"sessions": -1}, "sessions is -1"),
        ({"sessions": True}, "sessions is True"),
        ({"tokens_per_minute": 1.5}, "tokens_per_minute is 1.5"),
        ({"tokens_per_minute": 10**400}, "tokens_per_minute is 10"),
        ({"expires": "0001-01-01T00:00:00+14:00"}, "out of range"),
        ({"session": 3}, "session is not known"),
    ],
)
def test_a_line_that_is_not_understood_is_refused_by_name(
    change: dict[str, Any], names: str
) -> None:
    with pytest.raises(InvalidRequest, match="line 2 of the keys file") as caught:
        parse([LINE, with_(**change)])
    assert names in caught.value.message


def test_keys_of_one_name_with_different_quotas_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"line 2.*phone-7 has other quotas"):
        parse([LINE, with_(new_key("phone-7")[1], sessions=1)])


@pytest.mark.parametrize("line", ["[]", "{", "null", "dw_phone-7_0", "[" * 100_000])
def test_a_line_that_is_no_object_is_refused(line: str) -> None:
    with pytest.raises(InvalidRequest, match="line 1"):
        parse([line])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="can't be read"):
        Keys(tmp_path / "none")


def test_quotas_stand_beside_the_key(world: World) -> None:
    world.write(with_(sessions=2, tokens_per_minute=600, wasted_drafts_per_minute=90))
    key = world.keys.admit(f"Bearer {KEY}")
    assert key.quota == Quota(sessions=2, tokens_per_minute=600, wasted_drafts_per_minute=90)


def test_keys_of_one_name_share_an_account_which_a_new_quota_renews(world: World) -> None:
    later, line = new_key("phone-7")
    world.write(LINE, line)
    account = world.keys.account(world.keys.admit(f"Bearer {KEY}"))
    assert world.keys.account(world.keys.admit(f"Bearer {later}")) is account
    world.write(with_(sessions=1))
    assert world.keys.account(world.keys.admit(f"Bearer {KEY}")) is account
    assert account.quota.sessions == 1
