"""Why a file can't be used, in words."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from draftwire.reason import reason


def test_neither_number_nor_the_file_that_the_message_names(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(OSError) as failed:
        gone.read_text()
    assert reason(failed.value) == "No such file or directory"
    assert reason(failed.value, gone) == "No such file or directory"
    assert reason(failed.value, tmp_path) == f"{gone}: No such file or directory"


def test_errors_that_are_no_files_keep_their_words(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UnicodeDecodeError) as failed:
        (tmp_path / "binary").read_text(encoding="utf-8")
    assert reason(failed.value) == "it is no UTF-8 text"
    assert reason(ValueError("no JSON")) == "no JSON"
    assert reason(OSError("not on the hub")) == "not on the hub"
    assert "NO_CERTIFICATE" in reason(ssl.SSLError(1, "[SSL: NO_CERTIFICATE] none"))
