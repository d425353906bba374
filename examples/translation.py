"""Live translation: a speech recogniser's captions go in, their translation follows.

    recogniser | python examples/translation.py --to fr --verifier gpu.example.net:7433 \
        --model draft.gguf
    python examples/translation.py --demo

A line of input is the sentence as it is heard so far, and an empty line ends it. A newer caption
supersedes the one that is being translated. What is printed is the translation whenever it has
settled, how long after its caption that was, and the target's passes it took; in the end lag,
flicker (words that were shown and taken back) and passes over all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from _client import connected, parser

from edge_client import TranslationUpdate

HEARD = (
    "good morning everyone",
    "good morning everyone and welcome",
    "good morning everyone and welcome to the museum of our town",
    "",
    "nobody was hurt because the belts of the church",
    "nobody was hurt because the bells of the church",
    "nobody was hurt because the bells of the church rang for two hours",
    "",
)
PAUSE_S = 0.5

CORRECTED = """\
Correct the spelling and punctuation of this sentence. Answer with the sentence only.

{source}"""
"""For the demo, whose model is too small for a translator: from English into better English."""


def captions(demo: bool) -> Iterator[str]:
    if not demo:
        yield from sys.stdin
        return
    for caption in HEARD:
        print(f"> {caption}")
        yield caption
        time.sleep(PAUSE_S)


def show(update: TranslationUpdate) -> None:
    """Called from the client's thread: brief, and never blocking."""
    if update.settled:
        mark = "=" if update.final else "…"
        print(f"{mark} {update.text}  ({update.lag_ms:.0f} ms, {update.passes} passes)", flush=True)


def main() -> int:
    arguments = parser("Live translation of a speech recogniser's captions.")
    arguments.add_argument("--to", default="fr", metavar="LANGUAGE", help="default: fr")
    chosen = arguments.parse_args()
    options = {"template": CORRECTED} if chosen.demo else {}
    with (
        connected(chosen) as client,
        client.translate(chosen.to, shown=show, hold_back=1, **options) as translator,
    ):
        for caption in captions(chosen.demo):
            if caption.strip():
                translator.update(caption)
            else:
                translator.commit()
        translator.commit()
        translator.settled()
        print(translator.report.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
