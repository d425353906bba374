"""Makes README, SECURITY and CHANGELOG pages of the documentation's site, and fits links to it.

A hook of mkdocs. The files link to each other as they lie in the repository, where people read them
too. On the site, links to other pages go there; links to files that are no pages become plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages whose files lie outside docs/."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fit the links of a page."""
    del config, files
    path = page.file.src_uri
    source = next((name for name, made in PAGES.items() if made == path), f"docs/{path}")
    return fitted(markdown, source)


def fitted(markdown: str, source: str) -> str:
    """The text of the file at `source`, a path in the repository, with links for the site.

    Links to what is not there are left as they are, for mkdocs to complain of.
    """

    def fit(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if ":" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in PAGES:
            return f"[{text}]({PAGES[path]}{anchor})"
        if path.startswith("docs/"):
            return f"[{text}]({path.removeprefix('docs/')}{anchor})"
        return text if (ROOT / path).exists() else link[0]

    return _LINK.sub(fit, markdown)
