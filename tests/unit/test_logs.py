"""The verifier's log: what a line says, and what it never says."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from cloud_verifier.engine import Arrival, Engine
from cloud_verifier.logs import configure
from cloud_verifier.sessions import Stream
from cloud_verifier.table_target import TableTarget
from draftwire.testing.table import TableModel
from draftwire.types import Cancel, Draft, History, Open

SESSION = bytes(range(16))
SECRETS = (7841, 9157, 8263)  # token ids that no count or time of the log is


@pytest.fixture
def root() -> Iterator[None]:
    """Leave the root logger as it was."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def converse() -> None:
    """A generation of two verdicts that its client ends."""
    target = TableTarget(TableModel(vocabulary_size=10_000, states=64, seed=1))
    engine = Engine(target, clock=lambda: 0.0)
    stream = Stream()
    opening = Open(
        session_id=SESSION,
        attempt=1,
        generation=1,
        start=len(SECRETS),
        history=History(tokens=SECRETS),
        vocabulary_fingerprint=target.card.target.vocabulary_fingerprint,
    )
    for frame in (opening, Draft(base=3, epoch=0, tokens=SECRETS, credit=2), Cancel()):
        engine.step([Arrival(stream, frame, 0.0)])


@pytest.mark.usefixtures("root")
def test_json_lines_name_the_session_of_each_event() -> None:
    out = io.StringIO()
    configure("info", "json", out)
    converse()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["opened", "finished: cancelled"]
    assert {line["session"] for line in lines} == {SESSION.hex()}
    assert {(line["level"], line["logger"]) for line in lines} == {
        ("info", "cloud_verifier.engine")
    }
    assert all(line["time"].endswith("Z") for line in lines)


@pytest.mark.usefixtures("root")
def test_json_lines_hold_an_errors_code_and_its_trace() -> None:
    out = io.StringIO()
    configure("warning", "json", out)
    logger = logging.getLogger("cloud_verifier.anything")
    logger.info("not asked for")
    logger.warning("refused", extra={"session": "ab", "code": "SLOW_READER"})
    try:
        raise RuntimeError("out of memory")
    except RuntimeError:
        logger.exception("a pass failed")
    refused, failed = (json.loads(line) for line in out.getvalue().splitlines())
    assert (refused["session"], refused["code"]) == ("ab", "SLOW_READER")
    assert "session" not in failed
    assert failed["error"].endswith("RuntimeError")


@pytest.mark.usefixtures("root")
def test_text_lines_end_with_session_and_code() -> None:
    out = io.StringIO()
    configure("info", "text", out)
    logging.getLogger("cloud_verifier").info("refused", extra={"session": "ab", "code": "DRAINING"})
    assert out.getvalue().endswith(" INFO cloud_verifier: refused session=ab code=DRAINING\n")


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.usefixtures("root")
def test_no_line_holds_token_ids(style: str) -> None:
    out = io.StringIO()
    configure("debug", style, out)
    converse()
    assert out.getvalue()
    assert not [token for token in SECRETS if str(token) in out.getvalue()]


@pytest.mark.parametrize(("level", "shown"), [("info", 1), ("debug", 2)])
@pytest.mark.usefixtures("root")
def test_what_a_library_says_at_every_start_is_for_debugging(level: str, shown: int) -> None:
    out = io.StringIO()
    configure(level, "text", out)
    torchao = logging.getLogger("torchao")
    torchao.warning("Failed to load %s", "_C.so")
    torchao.warning("int4 needs a GPU")
    assert len(out.getvalue().splitlines()) == shown
    assert out.getvalue().endswith("int4 needs a GPU\n")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("style", ["json", "text"])
def test_an_exceptions_words_are_told_at_debug_only(style: str) -> None:
    said = {}
    for level in ("info", "debug"):
        out = io.StringIO()
        configure(level, style, out)
        try:
            try:
                [].pop(SECRETS[0])
            except IndexError as error:
                raise RuntimeError(f"of token {SECRETS[1]}") from error
        except RuntimeError:
            logging.getLogger("cloud_verifier.engine").exception("a pass failed")
        said[level] = out.getvalue()
    assert f"of token {SECRETS[1]}" in said["debug"]
    assert "of token 9" not in said["info"]
    assert "pop index" not in said["info"]
    assert 0 < said["info"].index("IndexError") < said["info"].rindex("RuntimeError")
    assert "test_logs.py" in said["info"]
