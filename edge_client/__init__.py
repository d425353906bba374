"""The device side of Draftwire: drafts here, has the cloud decide, gives text.

from edge_client import EdgeClient

with EdgeClient.from_model("127.0.0.1:7433", "draft.gguf") as client:
    with client.generate("Once upon a time") as stream:
        for delta in stream:
            print(delta.text, end="", flush=True)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwire.credentials import Credentials
    from draftwire.errors import DraftwireError
    from edge_client.branch import Origin
    from edge_client.chat import AsyncChat
    from edge_client.choice import Objective, Watts
    from edge_client.client import AsyncEdgeClient
    from edge_client.results import Delta, Kind, Summary, Token
    from edge_client.retry import RetryPolicy
    from edge_client.stream import AsyncStream
    from edge_client.sync import Chat, EdgeClient, Stream
    from edge_client.tentative import Shown, reduce
    from edge_client.translation import AsyncTranslator
    from edge_client.translation_results import TranslationReport, TranslationUpdate
    from edge_client.translation_sync import Translator

__all__ = [
    "AsyncChat",
    "AsyncEdgeClient",
    "AsyncStream",
    "AsyncTranslator",
    "Chat",
    "Credentials",
    "Delta",
    "DraftwireError",
    "EdgeClient",
    "Kind",
    "Objective",
    "Origin",
    "RetryPolicy",
    "Shown",
    "Stream",
    "Summary",
    "Token",
    "TranslationReport",
    "TranslationUpdate",
    "Translator",
    "Watts",
    "reduce",
]

_HOMES = {
    "AsyncChat": "edge_client.chat",
    "AsyncEdgeClient": "edge_client.client",
    "AsyncStream": "edge_client.stream",
    "AsyncTranslator": "edge_client.translation",
    "Chat": "edge_client.sync",
    "Credentials": "draftwire.credentials",
    "Delta": "edge_client.results",
    "DraftwireError": "draftwire.errors",
    "EdgeClient": "edge_client.sync",
    "Kind": "edge_client.results",
    "Objective": "edge_client.choice",
    "Origin": "edge_client.branch",
    "RetryPolicy": "edge_client.retry",
    "Shown": "edge_client.tentative",
    "Stream": "edge_client.sync",
    "Summary": "edge_client.results",
    "Token": "edge_client.results",
    "TranslationReport": "edge_client.translation_results",
    "TranslationUpdate": "edge_client.translation_results",
    "Translator": "edge_client.translation_sync",
    "Watts": "edge_client.choice",
    "reduce": "edge_client.tentative",
}
"""The module of each name. They are imported when asked for: the commands come by here, too, and
their help and a Ctrl-C at the start should not wait for gRPC."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
