"""An assistant in the terminal, whose answers appear as they are decided.

    python examples/assistant.py --verifier gpu.example.net:7433 --model draft.gguf
    python examples/assistant.py --demo

Ctrl-C stops an answer, Ctrl-D ends the conversation. A broken connection costs time only: the
client goes on where it was. If it gives up, the conversation is still there for the next question.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from _client import connected, parser

from edge_client import Chat, DraftwireError

SYSTEM = "You answer in one short sentence."
QUESTIONS = ("What is the capital of Italy?", "And of Spain?")


def questions(demo: bool) -> Iterator[str]:
    if demo:
        for question in QUESTIONS:
            print(f"> {question}")
            yield question
        return
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            return
        if question:
            yield question


def answer(chat: Chat, question: str) -> None:
    try:
        with chat.send(question, max_tokens=200) as stream:
            try:
                for delta in stream:
                    print(delta.text, end="", flush=True)
            except KeyboardInterrupt:
                print(" …", end="")
    except DraftwireError as error:
        print(f"\n[{error.code}: {error}]", end="")
    print()


def main() -> int:
    arguments = parser("An assistant in the terminal.").parse_args()
    with connected(arguments) as client:
        chat = client.chat(SYSTEM)
        for question in questions(arguments.demo):
            answer(chat, question)
    return 0


if __name__ == "__main__":
    sys.exit(main())
