"""What the model is asked for a translation: a template with a language, terms and context."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from draftwire.errors import InvalidRequest

DEFAULT_TEMPLATE = """\
Translate into {language}. Answer with the translation only, on one line.
{glossary}{context}
{source}"""
"""The source stands last: what comes before it stays in the verifier's KV while it grows."""

LANGUAGES = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hu": "Hungarian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "nl": "Dutch",
    "no": "Norwegian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sv": "Swedish",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "vi": "Vietnamese",
    "zh": "Chinese",
}
"""Names that models know languages by."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class TranslationPrompt:
    """Makes the user message for a caption.

    `to` is a language's code or name. In the `template`, `{source}` (which must be there) stands
    for the caption, `{language}` for the language's name, `{glossary}` for the terms that occur in
    the caption, a line each, and `{context}` for the lines before it; the latter two are empty
    where there are none. Other braces stand for themselves.

    Raises `InvalidRequest` for a template that lacks a placeholder that is needed, or has others.
    """

    def __init__(
        self,
        to: str,
        *,
        template: str = DEFAULT_TEMPLATE,
        glossary: Mapping[str, str] | None = None,
        context: int = 0,
    ) -> None:
        if context < 0:
            raise InvalidRequest(f"context is {context}, not ≥ 0")
        self._language = LANGUAGES.get(to.lower(), to)
        self._template = template
        self._terms = [
            (re.compile(rf"(?<!\w){re.escape(term)}(?!\w)", re.IGNORECASE), f"{term} = {meaning}")
            for term, meaning in (glossary or {}).items()
        ]
        found = set(_PLACEHOLDER.findall(template))
        if unknown := found - {"source", "language", "glossary", "context"}:
            raise InvalidRequest(
                f"the template names {', '.join(sorted(unknown))}",
                remedy="use {source}, {language}, {glossary} and {context}",
            )
        for name, needed in (
            ("source", True),
            ("glossary", bool(glossary)),
            ("context", bool(context)),
        ):
            if needed and name not in found:
                raise InvalidRequest(f"the template has no place for the {name}: {{{name}}}")

    def message(self, source: str, before: Iterable[tuple[str, str]] = ()) -> str:
        """The message for a caption, `before` it lines and their translations."""
        parts = {
            "source": source,
            "language": self._language,
            "glossary": _block(
                "Use these terms:", [line for term, line in self._terms if term.search(source)]
            ),
            "context": _block(
                "What was said before, for context only:",
                [f"{line} = {translation}" for line, translation in before],
            ),
        }
        return _PLACEHOLDER.sub(lambda match: parts[match[1]], self._template)


def parse_glossary(text: str) -> dict[str, str]:
    """Terms and their translations from lines `term = translation`, or with a tab between.

    Empty lines and those that begin with # are skipped. Raises `InvalidRequest` for others.
    """
    terms: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        term, _, meaning = line.partition("\t" if "\t" in line else "=")
        if not term.strip() or not meaning.strip():
            raise InvalidRequest(
                f"line {number} of the glossary is no term: {line.strip()!r}",
                remedy="write term = translation",
            )
        terms[term.strip()] = meaning.strip()
    return terms


def _block(heading: str, lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in (heading, *lines)) if lines else ""
