"""An engine on every rank, of which the first is driven and the others follow."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

import torch

from labkit.checks import names_its_arguments, require_kind
from labkit.engine import CacheConfig, Completion, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.device import default_dtype
from labkit.engine.packed_prefill import PackedPrefill
from labkit.engine.parts import Part, Parts
from labkit.engine.request import Request
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.engine.text_decoder import TextDecoder
from labkit.errors import OptionError
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.parallel.ranks import TorchRanks
from labkit.parallel.shards import cut_model

Made = TypeVar("Made")


@names_its_arguments(OptionError, {})
class ParallelEngine(InferenceEngine):
    """An `InferenceEngine` whose model is cut among ranks: made on all of them, driven on rank 0.

        ranks = TorchRanks()
        engine = ParallelEngine(load_model("random:gpt2-xl"), ranks)
        engine.lead_or_follow(lambda: print(engine.generate("To be, or")[0].text))

    Every rank has the whole host side: the same queue, books and plans. So a step needs no plan from rank 0,
    only the requests and cancellations that came before it, which are told without waiting. All that is
    chosen is chosen alike: sizes are the least that fit any rank, seeds are told, and logits are gathered, so
    that every rank draws from the same bits.

    An error in a step, of whatever rank, ends the engine on all ranks: with RankError, which names the rank.
    """

    def __init__(
        self,
        model: LanguageModel,
        ranks: TorchRanks,
        options: EngineOptions | None = None,
        *,
        dtype: torch.dtype | None = None,
        parts: Mapping[str, Part] | None = None,
        cache: CacheConfig = CacheConfig(),
        scheduler: SchedulerConfig = SchedulerConfig(),
    ) -> None:
        """model: whole, the same on every rank; it may stay on the CPU. All else as `InferenceEngine` has it.

        Raises OptionError for another model or ranks and for speculation, and RankError if any rank cannot
        make its part, be it because of an option.
        """
        require_kind("model", model, LanguageModel, "a LanguageModel, as load_model returns it")
        require_kind("ranks", ranks, TorchRanks, "TorchRanks(), made once in each process")
        if options is not None and options.speculation != "none":
            raise OptionError("drafts are not verified on several ranks: leave speculation = 'none'")
        self.ranks = ranks
        self._news: list[list[Any]] = []  # to be told before the next step
        with ranks.together():
            dtype = default_dtype(ranks.device) if dtype is None else dtype
            super().__init__(
                self.cut(model, dtype),
                options,
                device=ranks.device,
                dtype=dtype,
                parts=parts,
                cache=cache,
                scheduler=scheduler,
            )

    def cut(self, model: LanguageModel, dtype: torch.dtype) -> LanguageModel:
        return cut_model(model, self.ranks, dtype)

    def _build(self, parts: Parts, cache: CacheConfig, scheduler: SchedulerConfig) -> None:
        num_blocks = self.ranks.least(cache.max_blocks_per_layer)
        num_tokens = self.ranks.least(scheduler.prefill_max_tokens)
        super()._build(
            parts,
            replace(cache, max_blocks_per_layer=num_blocks),
            replace(scheduler, prefill_max_tokens=num_tokens),
        )
        if isinstance(self.decode_step, ResidentDecodeStep):
            self.decode_step.pinned_tokens.wait = self.ranks.wait_for
        if isinstance(self.prefill, PackedPrefill):
            self.prefill.chunk_step.pinned_tokens.wait = self.ranks.wait_for

    # --- what the first rank tells -----------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether this is the rank that is driven."""
        return self.ranks.rank == 0

    def _enqueue(self, request: Request) -> None:
        super()._enqueue(request)
        params = asdict(replace(request.params, seed=request.seed))
        self._news.append(["add", request.request_id, request.prompt_token_ids, params])

    def cancel(self, request_id: int) -> Completion:
        """End a request as `InferenceEngine.cancel` does; the other ranks end it before the next step."""
        completion = super().cancel(request_id)
        self._news.append(["cancel", completion.request_id])
        return completion

    def _cancel(self, requests: Iterable[Request]) -> None:
        known = [request for request in requests if request.request_id in self.delivery.requests]
        super()._cancel(known)
        self._news += [["cancel", request.request_id] for request in known]

    def _run_step(self) -> None:
        news, self._news = self._news, []
        with self._together():
            if self.is_leader:
                self.ranks.tell(json.dumps(news))
            super()._run_step()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """A block in which all ranks do the same, after whose errors this engine does nothing any more."""
        try:
            with self.ranks.together():
                yield
        except BaseException:
            self.guard.is_broken = True  # ranks may be at different places by now
            self.ranks.broken.append(self)
            raise

    # --- who drives --------------------------------------------------------------------------------

    def lead_or_follow(self, drive: Callable[[], Made]) -> Made | None:
        """Call `drive` on rank 0, which may do with the engine whatever it likes, and follow on the others
        until it returns; what it returned, None on those."""
        with self._together():
            if not self.is_leader:
                self._follow()
                return None
            made = drive()
            self.ranks.tell("null")
        return made

    def _follow(self) -> None:
        """Do what the first rank tells, until it has done."""
        while (news := json.loads(self.ranks.hear())) is not None:
            for kind, request_id, *request in news:
                if kind == "add":
                    self._add(request_id, *request)
                else:
                    self.cancel(request_id)
            self.step()

    def _add(self, request_id: int, token_ids: Sequence[int], params: dict[str, Any]) -> None:
        asked = SamplingParams(**params)
        decoder = TextDecoder(self.model.tokenizer, asked.stop) if asked.stop else None
        with self.guard:
            self._enqueue(Request(request_id, tuple(token_ids), asked, decoder=decoder))
