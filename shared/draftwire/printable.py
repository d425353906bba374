"""Text of others on a terminal of ours: what it can't do to it."""

from __future__ import annotations

_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
_CONTROLS = _PICTURES | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def printable(text: str, keep: str = "") -> str:
    """The text with a picture in place of each control character but those to `keep`.

    A terminal obeys some of them: written as they are, a model's words could move the cursor,
    hide what stands there, set the clipboard, or have the terminal type.
    """
    if text.isprintable():
        return text
    return text.translate({code: to for code, to in _CONTROLS.items() if chr(code) not in keep})
