"""The device side of Draftwire: drafts here, has the cloud decide, gives text.

from edge_client import EdgeClient

with EdgeClient.from_model("127.0.0.1:7433", "draft.gguf") as client:
    with client.generate("Once upon a time") as stream:
        for delta in stream:
            print(delta.text, end="", flush=True)
"""

from draftwire.credentials import Credentials
from draftwire.errors import DraftwireError
from edge_client.branch import Origin
from edge_client.choice import Objective, Watts
from edge_client.client import AsyncChat, AsyncEdgeClient
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
