"""Prompts of many kinds: instructions, code, lists, other scripts, one word, hundreds of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_client.drafter import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue as it stands, or with `chat` a question in the model's chat template.

    With `ends` the answer may end by itself; else it goes on past the end of the turn, so that
    every answer has the full number of tokens.
    """

    name: str
    text: str
    chat: bool = True
    ends: bool = False

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids, ready for the answer."""
        if self.chat:
            return tokenizer.encode_chat([{"role": "user", "content": self.text}])
        return tokenizer.encode(self.text)


def inventory(shelves: int) -> str:
    """A list that no model has by heart."""
    goods = ("copper wire", "lamp oil", "blue paint", "door hinges", "rope", "candles", "nails")
    return "\n".join(
        f"Shelf {n}: {(n * 37) % 91 + 3} units of {goods[n * 5 % 7]}, last counted on day {n * 13}."
        for n in range(1, shelves + 1)
    )


PROMPTS: Sequence[Prompt] = (
    Prompt("bicycle", "Explain how a bicycle stays upright, in a few paragraphs."),
    Prompt("capital", "What is the capital of France?", ends=True),
    Prompt("python", "Write a Python function that returns the n-th Fibonacci number."),
    Prompt("french", "Décris en français un été à la mer : le sable, les vagues, la lumière."),
    Prompt("japanese", "日本の四季について、短い文章を書いてください。"),
    Prompt("inventory", f"{inventory(32)}\n\nWhich shelf holds the most candles, and why?"),
    Prompt("word", "The", chat=False),
    Prompt("emoji", "🙂🙃😉 🚲🌊 → translate these emojis into a sentence, then add three more: "),
    Prompt("colours", "List ten colours, each with something that has it."),
    Prompt("hello", "Hi", ends=True),
    Prompt("numbers", "1, 1, 2, 3, 5, 8, 13, 21,", chat=False),
    Prompt("russian", "Расскажи коротко, почему небо голубое."),
    Prompt("c", "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0;", chat=False),
    Prompt("haiku", "Write a haiku about the sea.", ends=True),
    Prompt("json", '{"name": "Ada", "born": 1815, "known_for": ["', chat=False),
    Prompt("arabic", "اكتب جملتين عن القمر."),
    Prompt("story", "Once upon a time, in a village at the foot of a mountain,", chat=False),
    Prompt("sql", "Write an SQL query that counts the orders of each customer in 2024."),
    Prompt("greek", "Γεια σου! Πες μου δύο πράγματα για την Αθήνα."),
    Prompt("letter", "Write a polite letter that asks a neighbour to turn the music down."),
    Prompt("sum", "What is 17 plus 25? Think step by step."),
    Prompt("hindi", "भारत की तीन नदियों के नाम बताओ।"),
    Prompt("markdown", "| Planet | Moons |\n|---|---|\n| Earth | 1 |\n| Mars |", chat=False),
    Prompt("newline", "\n", chat=False),
    Prompt("german", "Erkläre einem Kind, warum es im Winter früher dunkel wird."),
    Prompt("repeat", "Repeat the word 'echo' twenty times, separated by commas."),
)
