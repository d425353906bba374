"""One tree of errors, each with a code, and a status that gRPC knows."""

from __future__ import annotations

import re

import grpc
import pytest

from draftwire import errors
from draftwire.errors import BY_CODE, DraftwireError, from_wire


def descendants(kind: type[DraftwireError]) -> list[type[DraftwireError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in descendants(child))]


ALL = descendants(DraftwireError)
LEAVES = [kind for kind in ALL if not kind.__subclasses__()]


def test_all_are_defined_in_one_place() -> None:
    assert {kind.__module__ for kind in ALL} == {errors.__name__}


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_every_leaf_has_a_code_of_its_own(kind: type[DraftwireError]) -> None:
    assert BY_CODE[kind.code] is kind


def test_codes_are_unique_and_upper_case() -> None:
    assert set(BY_CODE.values()) >= set(LEAVES)
    assert len(BY_CODE) == len(set(BY_CODE.values()))
    assert all(re.fullmatch("[A-Z]+(_[A-Z]+)*", code) for code in BY_CODE)


def test_an_inner_class_shares_the_code_of_one_of_its_own() -> None:
    for kind in ALL:
        assert issubclass(BY_CODE[kind.code], kind)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_status_is_one_of_grpcs(kind: type[DraftwireError]) -> None:
    assert kind.status in grpc.StatusCode.__members__
    assert kind.status != "OK"


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_what_goes_over_the_wire_comes_back_the_same(kind: type[DraftwireError]) -> None:
    sent = kind("what", remedy="do this", session_id="0a0b")
    back = from_wire(sent.status, sent.code, sent.message, sent.remedy, sent.session_id)
    assert type(back) is kind
    assert (back.message, back.remedy, back.session_id) == ("what", "do this", "0a0b")


@pytest.mark.parametrize("status", sorted(grpc.StatusCode.__members__))
def test_a_status_without_a_code_of_ours_is_still_an_error_of_ours(status: str) -> None:
    error = from_wire(status, None, "what")
    assert isinstance(error, DraftwireError)
    assert from_wire(status, "CODE_OF_A_LATER_VERSION", "what").code == error.code


@pytest.mark.parametrize("status", ["UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL"])
def test_a_status_that_says_nothing_of_the_request_is_a_lost_link(status: str) -> None:
    error = from_wire(status, None, "what")
    assert error.code == "LINK_LOST"
    assert error.retryable


def test_the_code_decides_not_the_status() -> None:
    assert from_wire("UNKNOWN", "SUPERSEDED", "what").code == "SUPERSEDED"


RETRYABLE = {
    "Unavailable",
    "ServerFull",
    "QuotaExceeded",
    "Draining",
    "SlowReader",
    "LinkLost",
    "DeadlineExceeded",
    "SessionGone",
}


def test_a_retry_helps_where_nothing_about_the_request_was_wrong() -> None:
    assert {kind.__name__ for kind in ALL if kind.retryable} == RETRYABLE


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    branches = re.findall(r"^    ((?:    |│   )*)[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE)
    path = ["DraftwireError"]
    drawn = []
    for indent, name in branches:
        path[1 + len(indent) // 4 :] = [name]
        drawn.append((name, path[-2]))
    assert sorted(drawn) == sorted((kind.__name__, kind.__bases__[0].__name__) for kind in ALL[1:])


def test_words_for_a_person_end_with_what_to_do() -> None:
    assert str(DraftwireError("It broke")) == "It broke"
    assert str(DraftwireError("It broke", remedy="mend it")) == "It broke — mend it"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_class_says_what_it_is_for(kind: type[DraftwireError]) -> None:
    assert kind.__doc__ != DraftwireError.__doc__ or kind is DraftwireError


def test_a_peers_words_are_bounded_and_no_terminal_obeys_them() -> None:
    error = from_wire("INTERNAL", "INTERNAL", "\x1b[2J" * 1_000_000, "call\r\n\x9b1m 555")
    assert len(error.message) == 2000
    assert error.message.startswith("␛[2J␛[2J")
    assert error.remedy == "call␍␊\ufffd1m 555"
