"""`draftwire`: generate and chat with a draft model here and a verifier elsewhere."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draftwire import __version__
from draftwire.errors import DraftwireError
from draftwire.types import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from edge_client.sync import EdgeClient, Stream

_EPILOG = """\
examples:
  draftwire demo --rtt 60
  draftwire generate "Why is the sky blue?" --verifier gpu.example.net:7433
  draftwire chat --model gemma-2-2b-it-Q4_K_M.gguf

Drafted tokens are tinted, corrections underlined. NO_COLOR=1 turns colours off; when stdout is
no terminal only the text goes there. Exit status: 0 done, 1 error, 130 interrupted.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="draftwire",
        description="The device side of Draftwire: drafts with a small model here, has the large "
        "model in the cloud decide. The text is exactly the large model's.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"draftwire {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    generate = commands.add_parser(
        "generate",
        help="generate once",
        description="Generate the answer to one prompt, on stdout.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    generate.add_argument("prompt", nargs="?", default="-", help="the prompt; - reads stdin")
    generate.add_argument(
        "--raw", action="store_true", help="continue the prompt itself, without the chat template"
    )
    generate.add_argument("--json", action="store_true", help="print one JSON object instead")
    _add_connection(generate)
    _add_sampling(generate)
    chat = commands.add_parser(
        "chat",
        help="talk, turn by turn",
        description="Talk in turns; each sends only what is new. Ctrl-C stops an answer, "
        "Ctrl-D or /quit ends.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    chat.add_argument("--system", help="system message")
    _add_connection(chat)
    _add_sampling(chat)
    return parser


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="one prompt split and cloud-alone, on the demo pair",
        description="Start a verifier, run the same prompt split and cloud-alone, check that the "
        "tokens are identical and print both speeds. Exit status 1 if they differ.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument(
        "--prompt", default="Explain how a bicycle stays upright, in a few paragraphs."
    )
    demo.add_argument("--rtt", type=float, default=0.0, metavar="MS", help="emulated round trip")
    demo.add_argument(
        "--pin", action="store_true", help="put the two sides on different processor cores"
    )
    demo.add_argument("--repeat", type=int, default=1, metavar="N", help="runs, interleaved")
    demo.add_argument(
        "--drafter",
        default="model",
        metavar="model|noisy:SIZE|random|wrong",
        help="spoil the drafter on purpose: the text must stay the same",
    )
    demo.add_argument(
        "--target", metavar="FILE", help="target for the verifier (default: the demo model)"
    )
    demo.add_argument("--model", metavar="FILE.gguf", help="draft model (default: the demo model)")
    demo.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout and nothing else there"
    )
    demo.add_argument("--ignore-eos", action="store_true", help="go on to --max-tokens")
    _add_sampling(demo, max_tokens=200)


def _add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument("--verifier", default=DEFAULT_ADDRESS, metavar="HOST:PORT")
    group.add_argument("--model", metavar="FILE.gguf", help="draft model (default: the demo model)")
    group.add_argument("--threads", type=int, metavar="N", help="threads of the draft model")
    group.add_argument("--context", type=int, default=4096, help="draft model's context, tokens")


def _add_sampling(parser: argparse.ArgumentParser, max_tokens: int = 256) -> None:
    group = parser.add_argument_group("generation")
    group.add_argument("--max-tokens", type=int, default=max_tokens)
    group.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    group.add_argument("--top-k", type=int, default=0, help="0: all tokens")
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--min-p", type=float, default=0.0)
    group.add_argument("--seed", type=int, help="random unless given")
    group.add_argument(
        "--num-draft-tokens",
        type=int,
        metavar="K",
        help="drafts per round; 0: the cloud decodes alone (default: adapts)",
    )


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `EdgeClient.generate` that were given on the command line."""
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "num_draft_tokens")
    return {name: getattr(arguments, name) for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    commands = {"demo": _demo, "generate": _generate, "chat": _chat}
    try:
        return commands[arguments.command](arguments)
    except DraftwireError as error:
        print(f"draftwire: {error.code}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def _demo(arguments: argparse.Namespace) -> int:
    from edge_client.demo import run

    return run(arguments)


def _generate(arguments: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    options = sampling_options(arguments)
    if arguments.raw:
        options["prompt"] = prompt
    else:
        options["messages"] = [{"role": "user", "content": prompt}]
    with _client(arguments) as client, client.generate(**options) as stream:
        if arguments.json:
            from edge_client.console import as_json

            stream.read()
            print(json.dumps(as_json(stream.summary), ensure_ascii=False))
        else:
            _print(stream)
    return 0


def _chat(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        chat = client.chat(arguments.system)
        while (line := _ask()) is not None:
            if not line.strip():
                continue
            with chat.send(line, **sampling_options(arguments)) as stream:
                try:
                    _print(stream)
                except KeyboardInterrupt:
                    print("\n(stopped)", file=sys.stderr)
    return 0


def _ask() -> str | None:
    """A line from the user; None at the end."""
    try:
        line = input("› " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return None
    return None if line.strip() == "/quit" else line


def _client(arguments: argparse.Namespace) -> EdgeClient:
    from draftwire.testing.demo import demo_model_path
    from edge_client.sync import EdgeClient

    model = arguments.model or demo_model_path()
    return EdgeClient.from_gguf(
        arguments.verifier, model, threads=arguments.threads, context=arguments.context
    )


def _print(stream: Stream) -> None:
    """Stream the text to stdout and the closing line to stderr."""
    from rich.console import Console

    from edge_client.console import closing_line, show

    out = Console()
    for delta in stream:
        if out.is_terminal:
            show(out, delta)
        else:
            print(delta.text, end="", flush=True)
    print(flush=True)
    Console(stderr=True).print(closing_line(stream.summary), style="dim", highlight=False)
