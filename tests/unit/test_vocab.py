"""A fingerprint is equal iff a token id means the same to both sides."""

from __future__ import annotations

from draftwire.vocab import FINGERPRINT_BYTES, fingerprint

TOKENS = ["<s>", "</s>", "Ġthe", "a", "語"]
MARK = fingerprint(TOKENS, bos=0, eos=1)


def test_it_is_pinned() -> None:
    assert len(MARK) == FINGERPRINT_BYTES
    assert MARK.hex() == "cabd9165843f1e7ea2e292d03577d911b6d91a70a95fcedbf95d143ea3eb0c0a"


def test_padding_does_not_change_it() -> None:
    gguf = [*TOKENS, "[PAD5]", "[PAD6]", "[PAD7]"]
    hugging_face = [*TOKENS, None, ""]
    assert fingerprint(gguf, bos=0, eos=1) == MARK
    assert fingerprint(hugging_face, bos=0, eos=1) == MARK


def test_a_hole_is_the_same_in_both_formats() -> None:
    gguf, hugging_face = ["a", "[PAD1]", "b"], ["a", None, "b"]
    closed = ["a", "b"]
    mark = fingerprint(gguf, bos=None, eos=2)
    assert fingerprint(hugging_face, bos=None, eos=2) == mark
    assert fingerprint(closed, bos=None, eos=2) != mark


def test_a_token_that_only_looks_like_padding_counts() -> None:
    assert fingerprint([*TOKENS, "[PAD]"], bos=0, eos=1) != MARK
    assert fingerprint([*TOKENS, "[PAD6]"], bos=0, eos=1) != MARK


def test_user_defined_spaces_are_the_same_in_both_formats() -> None:
    assert fingerprint(["▁▁", "a"], bos=None, eos=1) == fingerprint(["  ", "a"], bos=None, eos=1)


def test_any_difference_changes_it() -> None:
    marks = {
        MARK,
        fingerprint(TOKENS[:-1], bos=0, eos=1),
        fingerprint([*TOKENS, "b"], bos=0, eos=1),
        fingerprint(["<s>", "</s>", "a", "Ġthe", "語"], bos=0, eos=1),
        fingerprint(["<s>", "</s>", "Ġthea", "", "語"], bos=0, eos=1),
        fingerprint(["<s>", "</s>", "Ġth", "ea", "語"], bos=0, eos=1),
        fingerprint(TOKENS, bos=None, eos=1),
        fingerprint(TOKENS, bos=0, eos=2),
        fingerprint(TOKENS, bos=1, eos=0),
        fingerprint(TOKENS, bos=None, eos=None),
    }
    assert len(marks) == 10


def test_strings_that_are_not_valid_unicode_are_no_obstacle() -> None:
    assert fingerprint(["\udcff"], bos=None, eos=None) != fingerprint(["?"], bos=None, eos=None)
