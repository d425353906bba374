"""Feeds the codec bytes that a fuzzer finds by what code they reach.

    make fuzz                                       # a minute
    make fuzz ARGS="-max_total_time=600 CORPUS"     # options and folders are libFuzzer's

Whatever bytes come, a frame is read from them or a `DraftwireError` raised; and a frame that was
read is read again from the bytes it is written as. Needs the `fuzz` extra (Linux).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["draftwire"]):
    from draftwire import codec
    from draftwire.errors import DraftwireError
    from draftwire.types import (
        Cancel,
        ClientFrame,
        CompactDistribution,
        Draft,
        Finished,
        FinishReason,
        Grammar,
        Hint,
        History,
        Open,
        SamplingParams,
        ServerFrame,
        StopRules,
        Timing,
        TokenLogprobs,
        Usage,
        Verdict,
        VerifyMode,
    )

SECONDS = 60
CLIENT, SERVER = b"\0", b"\1"


def seeds() -> list[bytes]:
    """A frame of each kind, with every field in use."""
    client: list[ClientFrame] = [
        Open(
            session_id=bytes(16),
            attempt=2,
            generation=3,
            start=3,
            history=History(tokens=(1, 2, 3), prefix_length=1, prefix_hash=bytes(16)),
            vocabulary_fingerprint=bytes(32),
            model="table",
            sampling=SamplingParams(
                temperature=0.7,
                top_k=40,
                top_p=0.9,
                min_p=0.1,
                seed=9,
                repetition_penalty=1.1,
                presence_penalty=0.5,
                frequency_penalty=0.5,
                logit_bias={5: 1.0},
            ),
            stop=StopRules(max_tokens=9, min_tokens=2, token_ids=(7,), strings=("end",)),
            mode=VerifyMode.REJECTION,
            grammar=Grammar(kind="regex", text="a+"),
            required_features=("tree",),
            expected_target=bytes(32),
            logprobs=2,
        ),
        Draft(base=4, epoch=1, tokens=(5, 6), credit=2),
        Draft(
            base=4,
            epoch=1,
            tokens=(5,),
            q=(CompactDistribution(tokens=(5, 9), weights=bytes((200, 55))),),
        ),
        Cancel(),
    ]
    server: list[ServerFrame] = [
        Verdict(
            base=4,
            accepted=1,
            next=(8,),
            timing=Timing(queue_us=1, pass_us=2, pass_rows=3, frames=1, heard_us=4),
            hint=Hint(suggested_k=4, load_percent=50),
            logprobs=(TokenLogprobs(logprob=-0.5, top_tokens=(8,), top_logprobs=(-0.5,)),),
        ),
        Finished(reason=FinishReason.STOP, length=9, usage=Usage(prompt_tokens=3)),
    ]
    return [CLIENT + codec.pack_client(frame) for frame in client] + [
        SERVER + codec.pack_server(frame) for frame in server
    ]


def one_input(data: bytes) -> None:
    """The first byte says which side's frame the others are to be."""
    unpack: Callable[[bytes], Any] = codec.unpack_client
    pack: Callable[[Any], bytes] = codec.pack_client
    if data[:1] == SERVER:
        unpack, pack = codec.unpack_server, codec.pack_server
    try:
        frame = unpack(data[1:])
    except DraftwireError:
        return
    again = unpack(pack(frame))
    if repr(again) != repr(frame):  # by their words, for NaN is not equal to itself
        raise AssertionError(f"{frame} came back as {again}")


def main() -> None:
    """Fuzz until an input fails or the time is over."""
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds()):
            (Path(folder) / str(number)).write_bytes(seed)
        arguments = [sys.argv[0], f"-max_total_time={SECONDS}", *sys.argv[1:], folder]
        atheris.Setup(arguments, one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
