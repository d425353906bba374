"""Where drafting with llama.cpp ends: limits, misuse, broken files, closing, memory."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import tiny_gguf
from llama_drafting import drafter_of, fresh, same, text_of

from draftwire.errors import (
    CannotRollBack,
    InternalError,
    InvalidRequest,
    MissingDependency,
    ModelLoadFailed,
)
from draftwire.testing.demo import demo_model_path
from draftwire.types import SamplingParams
from edge_client.drafter import Proposal
from edge_client.drafters import llama_library
from edge_client.drafters.llama import LlamaDrafter, LlamaModel

pytestmark = pytest.mark.models

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    loaded = LlamaModel.load(tiny_gguf.write_attention_model(path))
    yield loaded
    loaded.close()


def test_the_context_limit_is_an_error_and_harms_nothing(tiny: LlamaModel) -> None:
    async def scenario() -> None:
        drafter = LlamaDrafter(tiny, threads=1, context=4096)
        assert drafter.max_context == tiny_gguf.TRAINED_CONTEXT
        tokens = [1, *await text_of(drafter, [1], drafter.max_context - 1)]
        for keep, added in ((len(tokens), []), (0, [1] * drafter.max_context)):
            with pytest.raises(InvalidRequest, match="position 40"):
                await drafter.draft(keep, added)
        given = await drafter.draft(len(tokens) - 1, [])
        assert same(given, await fresh(tiny, SamplingParams(), tokens[:-1]))
        await drafter.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("keep", "tokens"), [(-1, [1]), (4, [1]), (0, []), (0, [-1]), (0, [258])], ids=repr
)
def test_impossible_drafts_are_refused_and_change_nothing(
    tiny: LlamaModel, keep: int, tokens: list[int]
) -> None:
    async def scenario() -> None:
        drafter = drafter_of(tiny)
        await drafter.draft(0, [1, 2])
        with pytest.raises(InvalidRequest):
            await drafter.draft(keep, tokens)
        assert same(await drafter.draft(2, [3]), await fresh(tiny, SamplingParams(), [1, 2, 3]))
        await drafter.close()

    asyncio.run(scenario())


def test_an_overtaken_draft_fails_and_the_later_one_is_right(tiny: LlamaModel) -> None:
    async def scenario() -> None:
        drafter = drafter_of(tiny)
        first, second = await asyncio.gather(
            drafter.draft(0, [1, 2]), drafter.draft(1, [3]), return_exceptions=True
        )
        assert isinstance(first, InternalError)
        assert isinstance(second, Proposal)
        assert same(second, await fresh(tiny, SamplingParams(), [1, 3]))
        await drafter.close()

    asyncio.run(scenario())


def test_a_recurrent_model_is_refused_by_name_at_load(tmp_path: Path) -> None:
    path = tiny_gguf.write_recurrent_model(tmp_path / "rewindless.gguf")
    with pytest.raises(CannotRollBack, match=r"rewindless\.gguf, a mamba model"):
        LlamaModel.load(path)


def test_a_cache_that_refuses_to_be_rewound_later_proposes_nothing_from_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaModel, "_try_out", lambda self: None)  # noqa: ARG005 (it refuses it)
    model = LlamaModel.load(tiny_gguf.write_recurrent_model(tmp_path / "rewindless.gguf"))

    async def scenario() -> None:
        drafter = drafter_of(model)
        said = await text_of(drafter, [1, 2, 3], 3)
        for _ in range(2):  # and it stays so
            with pytest.raises(CannotRollBack, match="position 4"):
                await drafter.draft(4, [said[1] + 1])
        whole = [1, 2, 3, *said[:1], said[1] + 1]
        given = await drafter.draft(0, whole)  # all of it can be forgotten
        assert same(given, await fresh(model, SamplingParams(), whole))
        await drafter.close()

    asyncio.run(scenario())
    model.close()


def test_an_interrupt_while_llama_cpp_logs_is_not_lost(tmp_path: Path) -> None:
    path = tiny_gguf.write_attention_model(tmp_path / "tiny.gguf")
    lines = 0

    class Interrupting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
            nonlocal lines
            lines += 1
            if lines == 3:
                signal.raise_signal(signal.SIGINT)

    handler, level = Interrupting(), llama_library.log.level
    llama_library.log.addHandler(handler)
    llama_library.log.setLevel(logging.DEBUG)
    try:
        with pytest.raises(KeyboardInterrupt):
            LlamaModel.load(path)
    finally:
        llama_library.log.removeHandler(handler)
        llama_library.log.setLevel(level)
    assert lines > 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"not a model" * 100], ids=repr)
def test_a_wrong_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "wrong.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadFailed, match=r"wrong\.gguf"):
        LlamaModel.load(path)


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_library, "_library", None)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingDependency, match=r"pip install 'draftwire\[edge\]'"):
        LlamaModel.load(demo_model_path())


def test_closing_ends_the_thread_and_frees_the_model_last(tmp_path: Path) -> None:
    model = LlamaModel.load(tiny_gguf.write_attention_model(tmp_path / "tiny.gguf"))

    def threads() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("drafter")}

    async def scenario() -> None:
        before = threads()
        drafter = drafter_of(model)
        await drafter.draft(0, [1, 2])
        (started,) = threads() - before
        model.close()
        model.close()
        await drafter.draft(2, [3])  # its own hold keeps the weights
        await drafter.close()
        await drafter.close()
        started.join(10)
        assert not started.is_alive()
        with pytest.raises(InternalError):
            await drafter.draft(0, [1])
        with pytest.raises(InternalError):
            model.tokenizer.encode("text")
        with pytest.raises(InternalError):
            drafter_of(model)

    asyncio.run(scenario())


def test_a_forgotten_drafter_frees_its_context_and_thread(tiny: LlamaModel) -> None:
    async def scenario() -> threading.Thread:
        before = set(threading.enumerate())
        drafter = drafter_of(tiny)
        await drafter.draft(0, [1])
        (thread,) = set(threading.enumerate()) - before
        return thread

    thread = asyncio.run(scenario())
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_drafter_outlives_the_event_loop_it_was_used_on(tiny: LlamaModel) -> None:
    drafter = drafter_of(tiny)

    async def leave_in_the_middle() -> None:
        call = asyncio.create_task(drafter.draft(0, [1] * 30))
        await asyncio.sleep(0)
        call.cancel()

    async def go_on() -> None:
        given = await drafter.draft(30, [2])
        assert same(given, await fresh(tiny, SamplingParams(), [1] * 30 + [2]))
        await drafter.close()

    asyncio.run(leave_in_the_middle())
    asyncio.run(go_on())


def test_a_process_that_ends_in_the_middle_of_a_draft_ends_well() -> None:
    script = (
        "import asyncio\n"
        "from draftwire.testing.demo import demo_model_path\n"
        "from edge_client.drafters.llama import LlamaDrafter, LlamaModel\n"
        "drafter = LlamaDrafter(LlamaModel.load(demo_model_path()), threads=1)\n"
        "async def main():\n"
        "    call = asyncio.create_task(drafter.draft(0, [100] * 4000))\n"
        "    await asyncio.sleep(0.1)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_closing_does_not_wait_for_a_prompt(model: LlamaModel) -> None:
    async def scenario() -> None:
        drafter = drafter_of(model, batch=8, context=4096)
        call = asyncio.create_task(drafter.draft(0, [100] * 4000))
        await asyncio.sleep(0)
        await asyncio.wait_for(drafter.close(), 5)
        with pytest.raises(InternalError):
            await call

    asyncio.run(scenario())


def test_a_long_loop_does_not_grow(tiny: LlamaModel) -> None:
    async def scenario() -> None:
        drafter = drafter_of(tiny)
        await drafter.begin(SAMPLED, [])
        process = psutil.Process()

        async def loop(count: int) -> int:
            for i in range(count):
                keep = 1 if i % 30 == 0 else 1 + i % 30
                await drafter.draft(keep if i else 0, [2] if i % 30 == 0 else [])
            gc.collect()
            return int(process.memory_info().rss)

        before = await loop(1000)
        objects = len(gc.get_objects())
        sizes = [before] + [await loop(2000) for _ in range(4)]
        assert min(after - before for before, after in pairwise(sizes)) < 1 << 20  # a leak goes on
        assert len(gc.get_objects()) - objects < 500
        await drafter.close()

    asyncio.run(scenario())
