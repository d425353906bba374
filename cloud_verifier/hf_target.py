"""The target model on torch and transformers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from cloud_verifier import cpu_linear
from cloud_verifier.attention import IMPLEMENTATION, Need, PagedKV, Span, choose_backend, register
from cloud_verifier.cuda_graphs import graphed, wanted
from cloud_verifier.deterministic import FIXED, FixedForward, check, check_settings
from cloud_verifier.forward import Forward, PackedForward
from cloud_verifier.judge import judge
from cloud_verifier.loading import LoadedTarget, load_target
from cloud_verifier.outline import outline
from cloud_verifier.rollback import PROBE, probe, windows_of
from cloud_verifier.target import GRAMMAR, STOP_STRINGS, Judgement, Row
from draftwire.errors import InternalError, InvalidRequest, ModelLoadFailed
from draftwire.grammar import GrammarCompiler, serves_grammars
from draftwire.types import ModelCard, SamplingParams, ServingLimits, VerifyMode

_AGREE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}

_log = logging.getLogger(__name__)


class HFTarget:
    """A transformers model as `TargetModel`: one packed pass over paged KV (see `attention`).

    Made by `load`. Used from one thread at a time.
    """

    def __init__(
        self,
        loaded: LoadedTarget,
        *,
        kv_tokens: int,
        limits: ServingLimits,
        attention: str = "auto",
        cuda_graphs: bool | None = None,
    ) -> None:
        """Prefer `load`. `limits.max_context` must fit the model and `kv_tokens`."""
        self._model: PreTrainedModel | None = loaded.model
        self._pieces = loaded.pieces or ()
        self._grammars: GrammarCompiler | None = None
        if serves_grammars(self._pieces):
            padding = [b""] * (loaded.vocabulary_size - len(self._pieces))
            self._grammars = GrammarCompiler([*self._pieces, *padding], loaded.encode)
        self._card = ModelCard(
            target=loaded.identity,
            limits=limits,
            vocabulary_size=loaded.vocabulary_size,
            features=_features(self._pieces, self._grammars),
            verify_modes=tuple(VerifyMode),
        )
        shapes, expected = probe(loaded.model, loaded.identity.model)
        model = loaded.model
        need = Need.of(model.config, shapes, device=model.device, dtype=model.dtype)
        fixed = loaded.deterministic
        self._backend = FIXED if fixed else choose_backend(attention, need)
        graphs = wanted(cuda_graphs, self._backend, model.device)
        register()
        cpu_linear.install(loaded.model)
        self._shipped = str(loaded.model.config._attn_implementation)
        try:
            loaded.model.set_attn_implementation(IMPLEMENTATION)
            self._kv = PagedKV(
                shapes,
                num_blocks=-(-kv_tokens // self._backend.block_size),
                block_size=self._backend.block_size,
                device=model.device,
                dtype=model.dtype,
                planner=self._backend.planner,
                scratch=graphs or fixed,
            )
        except ValueError as error:
            raise ModelLoadFailed(
                f"{loaded.identity.model} can't use packed attention: {error}",
                remedy="choose a model whose code takes its attention from transformers' interface",
            ) from error
        except RuntimeError as error:
            raise ModelLoadFailed(
                f"no memory for the KV of {kv_tokens} tokens: {error}",
                remedy="choose fewer KV tokens",
            ) from error
        forward = Forward(model, self._kv)
        self._forward: PackedForward | None = forward
        if fixed:
            self._forward = FixedForward(forward, model, self._kv)
        self._check_agreement(expected, windows_of(model.config))
        if fixed:
            check(self._forward, model, loaded.identity.model)
        if graphs:
            self._forward = graphed(
                forward,
                self._kv,
                logits=expected,
                reach=limits.max_context,
                required=bool(cuda_graphs),
            )
        _log.info(
            "serving %s (%s on %s, attention %s%s): KV of %d tokens in %.1f MB, context up to %d",
            loaded.identity.model,
            loaded.identity.dtype,
            model.device,
            self._backend.name,
            f", revision {loaded.revision}" if loaded.revision else "",
            self.num_blocks * self.block_size,
            self.kv_bytes / 1e6,
            limits.max_context,
        )

    @classmethod
    def load(
        cls,
        source: str,
        *,
        kv_tokens: int,
        dtype: str = "auto",
        device: str = "auto",
        quantize: str | None = None,
        trust_remote_code: bool = False,
        threads: int | None = None,
        deterministic: bool = False,
        max_context: int | None = None,
        max_pending: int = 256,
        max_credit: int = 256,
        max_rows: int = 33,
        name: str | None = None,
        attention: str = "auto",
        cuda_graphs: bool | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> HFTarget:
        """Load a target from a Hugging Face directory, a hub id or a `.gguf` file.

        KV memory for `kv_tokens` tokens over all sessions is allocated at once. A session's
        context is bounded by `max_context`, by default as far as the model and `kv_tokens` go.
        `threads` sets torch's threads in this process; None leaves them alone. With
        `deterministic` (see the module of that name; CPUs only) a row's logits and KV do not
        depend, in any bit, on what else is in the pass. `attention` names a back end (see
        `attention`); "auto" is the fastest that serves the model on the device. `cuda_graphs`: see
        `cuda_graphs`; None is where they are possible. The other arguments are those of
        `loading.load_target` and of `ServingLimits`.

        Raises the errors of `load_target`, and `InvalidRequest` for bounds that can't hold.
        """
        if kv_tokens < 2:
            raise InvalidRequest(f"kv_tokens is {kv_tokens}, not ≥ 2")
        if threads is not None:
            if threads < 1:
                raise InvalidRequest(f"threads is {threads}, not ≥ 1")
            torch.set_num_threads(threads)
        if deterministic:
            check_settings(attention, cuda_graphs)
        loaded = load_target(
            source,
            dtype=dtype,
            device=device,
            quantize=quantize,
            trust_remote_code=trust_remote_code,
            deterministic=deterministic,
            name=name,
            progress=progress,
            inspect=partial(_check_attention, attention, cuda_graphs, trust_remote_code),
        )
        if max_context is not None and max_context > min(loaded.max_context, kv_tokens):
            raise InvalidRequest(
                f"max_context is {max_context}, but the model goes to {loaded.max_context} tokens"
                f"{loaded.context_reason and f' ({loaded.context_reason})'} "
                f"and the KV to {kv_tokens}",
                remedy="choose a smaller context or more KV tokens",
            )
        limits = ServingLimits(
            max_context=max_context or min(loaded.max_context, kv_tokens),
            max_pending=max_pending,
            max_credit=max_credit,
            max_rows=max_rows,
        )
        return cls(
            loaded,
            kv_tokens=kv_tokens,
            limits=limits,
            attention=attention,
            cuda_graphs=cuda_graphs,
        )

    @property
    def card(self) -> ModelCard:
        """What is served: identity, vocabulary and limits."""
        return self._card

    @property
    def block_size(self) -> int:
        """Positions a KV block holds."""
        return self._kv.block_size

    @property
    def num_blocks(self) -> int:
        """KV blocks there are."""
        return self._kv.num_blocks

    @property
    def kv_bytes(self) -> int:
        """Memory of the KV pools, bytes."""
        return self._kv.size_bytes

    def piece(self, token: int) -> bytes:
        """The token's text as bytes; empty for special tokens and padding of the vocabulary."""
        return self._pieces[token] if token < len(self._pieces) else b""

    @property
    def grammars(self) -> GrammarCompiler | None:
        """Compiles grammars; None without llguidance, or where tokens' bytes can't be told."""
        return self._grammars

    @contextmanager
    def plain(self, *, linear_layers: bool = True) -> Iterator[PreTrainedModel]:
        """The same model object as transformers ships it, for comparison.

        It has the library's own attention within; with `linear_layers` its linear layers too,
        else those of this target. No pass may run meanwhile.
        """
        if self._model is None:
            raise InternalError("the target is closed")
        model = self._model
        model.set_attn_implementation(self._shipped)
        if linear_layers:
            cpu_linear.remove(model)
        try:
            yield model
        finally:
            model.set_attn_implementation(IMPLEMENTATION)
            cpu_linear.install(model)

    def verify(self, rows: Sequence[Row]) -> list[Judgement | None]:
        """Run one pass over all rows; a judgement per row, None where `judge` is false.

        Raises `InternalError`, before anything is written, for a row that breaks the protocol
        of `TargetModel`: the engine must not have made it.
        """
        if not rows:
            return []
        self._check(rows)
        with torch.inference_mode():
            return judge(rows, self.logits(rows))

    def logits(self, rows: Sequence[Row]) -> torch.Tensor:
        """Run one pass and return logits, `[N, vocab]` in the model's dtype.

        N counts `drafts + 1` per judged row, in order: those of its last fed tokens, each the
        distribution for the position after it. The next pass may overwrite them.
        """
        if self._forward is None:
            raise InternalError("the target is closed")
        tokens: list[int] = []
        keep: list[int] = []
        for row in rows:
            tokens.extend(row.tokens)
            if row.judge:
                keep.extend(range(len(tokens) - row.drafts - 1, len(tokens)))
        spans = [Span(row.start, len(row.tokens), row.blocks) for row in rows]
        with torch.inference_mode():
            return self._forward(tokens, spans, keep)

    def warm_up(self, *, max_batch_tokens: int) -> None:
        """Run passes of the sizes that serving brings, so that no user waits for what only the
        first of a size needs: kernels to be chosen and memory to be taken.

        To be called before sessions hold blocks: it overwrites KV. On a CPU, where that is next
        to nothing, long passes are left out.
        """
        whole = min(self.num_blocks * self.block_size, self._card.limits.max_context)
        rows = min(self._card.limits.max_rows, whole)
        sizes = [(1, 0, 0.0), (rows, rows - 1, 0.0), (rows, rows - 1, 1.0)]
        if self._kv.device.type != "cpu":
            sizes.append((min(max_batch_tokens, whole), 0, 0.0))
        for tokens, drafts, temperature in sizes:
            row = Row(
                tokens=[PROBE[0]] * tokens,
                start=0,
                blocks=range(-(-tokens // self.block_size)),
                drafts=drafts,
                sampling=SamplingParams(temperature=temperature),
            )
            started = time.monotonic()
            self.verify([row])
            _log.debug("warm-up: %d tokens in %.3f s", tokens, time.monotonic() - started)

    def close(self) -> None:
        """Free weights and KV. A pass afterwards raises `InternalError`."""
        self._model = None
        self._forward = None
        self._kv.close()

    def _check(self, rows: Sequence[Row]) -> None:
        vocabulary, blocks = self._card.vocabulary_size, self.num_blocks
        for row in rows:
            fed = len(row.tokens)
            if not 0 <= row.drafts < fed or row.start < 0:
                raise InternalError(f"a row feeds {fed} tokens, {row.drafts} of them drafts")
            if min(row.tokens) < 0 or max(row.tokens) >= vocabulary:
                raise InternalError(
                    f"a row holds a token id outside the vocabulary of {vocabulary}"
                )
            if len(row.blocks) * self.block_size < row.end:
                raise InternalError(f"a row ends at {row.end}, past its {len(row.blocks)} blocks")
            if min(row.blocks) < 0 or max(row.blocks) >= blocks:
                raise InternalError(f"a row names a block outside the {blocks} there are")

    def _check_agreement(self, expected: torch.Tensor, windows: set[int | None]) -> None:
        """Refuse a model that relies on more than this attention and this cache give it.

        `windows` are those of the layers. The probe is shorter, so that a window the model leaves
        to the mask, which is not built here, would not show in its logits.
        """
        name, failure = self._card.target.model, "its logits differ"
        if not bool(expected.isfinite().all()):
            raise ModelLoadFailed(
                f"{name} gives no finite logits as {self._card.target.dtype}",
                remedy="choose --dtype bfloat16, whose range is float32's",
            )
        row = Row(tokens=PROBE, start=0, blocks=(0,), drafts=len(PROBE) - 1)
        try:
            got = self.logits([row])
            tolerance = _AGREE.get(got.dtype, 1e-3) * max(1.0, float(expected.abs().max()))
            if self._kv.windows != windows:
                failure = f"its layers ask for windows of {self._kv.windows}, not {windows}"
            elif float((got - expected).abs().max()) <= tolerance:
                return
        except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
            failure = str(error)
        raise ModelLoadFailed(
            f"{name} does not compute the same with packed attention: {failure}",
            remedy="choose a model whose attention is plain, sliding-window or soft-capped",
        )


def _features(pieces: Sequence[bytes], grammars: GrammarCompiler | None) -> tuple[str, ...]:
    served = {STOP_STRINGS: bool(pieces), GRAMMAR: grammars is not None}
    return tuple(name for name, possible in served.items() if possible)


def _check_attention(
    attention: str,
    cuda_graphs: bool | None,
    trust_remote_code: bool,
    config: PreTrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Refuse what is asked for and can't be had, before weights are loaded."""
    if attention != "auto" or cuda_graphs:
        shapes = outline(config, trust_remote_code=trust_remote_code).shapes
        need = Need.of(config, shapes, device=device, dtype=dtype)
        wanted(cuda_graphs, choose_backend(attention, need), device)
