"""A character of a game who has to answer in time.

    python examples/dialogue.py --verifier gpu.example.net:7433 --model draft.gguf --budget-ms 1200
    python examples/dialogue.py --demo

What the player says is answered within the budget, or little later where the network is down. At
its end the generation is cancelled, and the character says the sentences that are complete; a stock
phrase, if there is none. What was not said is taken out of the conversation, so that the character
never refers to it.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator

from _client import connected, parser

from edge_client import Chat, DraftwireError, RetryPolicy

SYSTEM = (
    "You are Mira, keeper of the old lighthouse in a game. You are brief and a little gruff. "
    "You answer in one or two short sentences and stay in character."
)
PLAYER = ("Good evening. Is this your lighthouse?", "Have you seen any ships tonight?")
STOCK_PHRASE = "Hm."


def complete_sentences(text: str) -> str:
    """The beginning of a text up to the end of its last complete sentence, maybe none."""
    ends = [found.end() for found in re.finditer(r"[.!?…]+[\"'”’)]*(?=\s|$)", text)]
    return text[: ends[-1]].strip() if ends else ""


def reply(chat: Chat, said: str, budget_s: float) -> str:
    """What the character says, in time."""
    stream = chat.send(said, max_tokens=40)
    timer = threading.Timer(budget_s, stream.cancel)
    timer.start()
    try:
        spoken = complete_sentences(stream.read()) or STOCK_PHRASE
    except DraftwireError:  # the network or the verifier is gone: the game goes on
        return STOCK_PHRASE
    finally:
        timer.cancel()
        stream.close()
    chat.messages[-1]["content"] = spoken
    return spoken


def lines(demo: bool) -> Iterator[str]:
    if demo:
        yield from PLAYER
        return
    while line := sys.stdin.readline().strip():
        yield line


def main() -> int:
    arguments = parser("A character of a game who has to answer in time.")
    arguments.add_argument("--budget-ms", type=float, default=1500.0, metavar="MS")
    chosen = arguments.parse_args()
    # After a cancel the verifier's own word is waited for, but not for long.
    with connected(chosen, retry=RetryPolicy(cancel_timeout_s=0.2)) as client:
        chat = client.chat(SYSTEM)
        chat.send("Hello.", max_tokens=1).read()  # the prompt is read while the level loads
        del chat.messages[1:]
        for line in lines(chosen.demo):
            started = time.monotonic()
            spoken = reply(chat, line, chosen.budget_ms / 1e3)
            took_ms = (time.monotonic() - started) * 1e3
            print(f"Player: {line}\nMira: {spoken}  ({took_ms:.0f} ms)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
