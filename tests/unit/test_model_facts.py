"""Whether a draft model fits a target, and which file of a repository drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftwire.errors import InvalidRequest, ModelNotFound
from edge_client.model_facts import ModelFacts, fit
from edge_client.model_store import choose, fetch

DRAFT = ModelFacts(
    source="draft.gguf",
    kind="GGUF",
    name="small",
    vocabulary_size=100,
    fingerprint="ab",
    context=4096,
    eos_token_ids=(2, 5),
    chat_template=True,
    chat=((1, 2), (3,)),
)
TARGET = replace(DRAFT, name="large", eos_token_ids=(2,))
SERVED = replace(TARGET, kind="verifier", chat=None, chat_template=None)


def test_the_same_vocabulary_and_template_fit() -> None:
    assert fit(DRAFT, TARGET).fits
    assert fit(DRAFT, TARGET).remarks == ()


def test_another_vocabulary_does_not_and_nothing_else_matters_then() -> None:
    told = fit(DRAFT, replace(TARGET, fingerprint="cd", chat=None))
    assert not told.fits
    assert "vocabularies differ" in told.problems[0]
    assert told.remarks == ()


def test_another_template_does_not() -> None:
    assert "differ" in fit(DRAFT, replace(TARGET, chat=((1, 2), (4,)))).problems[0]


@pytest.mark.parametrize(("draft", "target", "fits"), [(False, True, False), (True, False, True)])
def test_the_template_is_the_drafts(draft: bool, target: bool, fits: bool) -> None:
    none = (None, None)
    told = fit(
        replace(DRAFT, chat_template=draft, chat=DRAFT.chat if draft else none),
        replace(TARGET, chat_template=target, chat=TARGET.chat if target else none),
    )
    assert told.fits == fits
    assert "chat template" in (told.problems + told.remarks)[0]


def test_what_a_verifier_does_not_tell_is_said() -> None:
    told = fit(DRAFT, replace(SERVED, eos_token_ids=(2, 7), context=8192))
    assert told.fits
    template, ends, context = told.remarks
    assert "template" in template
    assert "[7]" in ends
    assert "4096" in context


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["a.gguf", "README.md"], "a.gguf"),
        (["onnx/model.onnx", "onnx/model_q4.onnx"], "onnx/model.onnx"),
        (["onnx/model_q4.onnx"], "onnx/model_q4.onnx"),
        (["b.gguf", "onnx/model.onnx"], "b.gguf"),
    ],
)
def test_the_only_file_is_taken_gguf_first(names: list[str], chosen: str) -> None:
    assert choose(names, "owner/name") == chosen


@pytest.mark.parametrize(
    ("names", "said"),
    [(["a-Q4.gguf", "a-Q8.gguf"], "--file"), (["model.safetensors"], "export-onnx owner/name")],
)
def test_where_it_is_not_plain_it_says_what_to_do(names: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        choose(names, "owner/name")


def test_what_is_no_name_of_a_model_is_not_fetched() -> None:
    with pytest.raises(ModelNotFound, match="hub id"):
        fetch("no such model", report=lambda _: None)
