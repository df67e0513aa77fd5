"""The engine: requests in, tokens out, one step at a time."""

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from labkit.checks import names_its_arguments, require_kind, shown, whole
from labkit.engine.config import CacheConfig, SchedulerConfig
from labkit.engine.delivery import Delivery, StepOutputs
from labkit.engine.device import cache_dtype, check_dtype, current_device, default_dtype, pick_device
from labkit.engine.guard import BROKEN, Guard
from labkit.engine.overlap import ReadOneBehind
from labkit.engine.parts import Part, Parts
from labkit.engine.prompt import Limits, Prompt, prompts_with_params
from labkit.engine.request import Chunk, Completion, FinishReason, Request
from labkit.engine.sampling import SamplingParams
from labkit.engine.scheduler import OnlineScheduler
from labkit.engine.sizes import fitted
from labkit.engine.stats import EngineCounters, EngineStats
from labkit.engine.step.build import Builder, launch_of, tiles_of
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.engine.text_decoder import TextDecoder
from labkit.errors import BrokenEngineError, EngineBusyError, OptionError, RequestError
from labkit.ladder import FINISHED, LADDER
from labkit.model import LanguageModel
from labkit.options import EngineOptions

IN_SCHEDULER = "say scheduler=SchedulerConfig(max_batch_size=...)"
IN_CACHE = "say cache=CacheConfig(memory_share=..., max_positions=...)"


@names_its_arguments(
    OptionError,
    {
        "max_batch_size": IN_SCHEDULER,
        "max_num_seqs": IN_SCHEDULER,
        "memory_share": IN_CACHE,
        "gpu_memory_utilization": IN_CACHE,
        "max_model_len": IN_CACHE,
        "rung": 'say options=LADDER["05"].options',
    },
)
class InferenceEngine:
    """A paged inference engine: requests in, tokens out, many at a time.

        engine = InferenceEngine(load_model("data/tiny-gpt2"))
        print(engine.generate("To be, or", SamplingParams(max_new_tokens=16))[0].text)

    model: from `load_model`.
    options: a rung's, such as LADDER["05"].options. None: the finished engine's, rung 14.
    device: "cpu", "cuda" or one GPU, "cuda:1". None: the GPU where there is one.
    dtype: torch.float32, float16, bfloat16 or, below rung 09, float64. None: float32 on a CPU, float16 on a
        GPU.
    cache, scheduler: memory and policy, the same on every rung. What they leave open is fitted to the model
        and the device; `stats()` says what came of it.
    parts: by the name of an option, your own class or function in place of the one that the option's value
        names, as in {"block_tables": MyBlockTables}.

    Three ways to use it: `generate` returns when all requests have ended; `stream` yields one request's text
    as it is made; `add_request` and `step` are the loop for your own server. A `StreamingServer` runs that
    loop for many threads or coroutines.

    Raises OptionError for any other argument, or a size beyond the device's memory, and RecordError if the
    file of tiles measured on the GPU is damaged.
    If a step fails, it raises; no token and no block is lost, and every request can go on. After an interrupt
    (KeyboardInterrupt) the running step is finished first. One driver at a time: a second thread's call
    raises EngineBusyError. See `Guard`.
    """

    def __init__(
        self,
        model: LanguageModel,
        options: EngineOptions | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        parts: Mapping[str, Part] | None = None,
        cache: CacheConfig = CacheConfig(),
        scheduler: SchedulerConfig = SchedulerConfig(),
    ) -> None:
        options = FINISHED.options if options is None else options
        require_kind("model", model, LanguageModel, "a LanguageModel, as load_model returns it")
        require_kind("options", options, EngineOptions, "EngineOptions, such as LADDER['05'].options")
        require_kind("cache", cache, CacheConfig, "a CacheConfig")
        require_kind("scheduler", scheduler, SchedulerConfig, "a SchedulerConfig")
        self.device = pick_device(device)
        self.dtype = default_dtype(self.device) if dtype is None else check_dtype(dtype, options)
        kept = cache_dtype(self.dtype, options, self.device)
        checked_parts = Parts(options, {} if parts is None else parts)
        self._on_device = current_device(self.device)
        with self._on_device:
            self.model = model.to(self.device, self.dtype)
            self._eos_token_ids = self.model.eos_token_ids
            sizes = fitted(self.device, self.dtype, kept, model.config, cache, scheduler)
            self._build(checked_parts, *sizes)

    def _build(self, parts: Parts, cache: CacheConfig, scheduler: SchedulerConfig) -> None:
        self.options, self._cache = parts.options, cache
        self.max_positions = cache.max_positions  # tokens of the longest sequence
        build = Builder(parts, self.model.network, cache, scheduler)
        self.kv_manager = build.kv_manager
        blocks = self.kv_manager.block_size, self.kv_manager.max_blocks_per_layer
        self.limits = Limits(self.model.config.vocab_size, self.max_positions, *blocks)  # of a request
        self.prefix_cache = build.prefix_cache(cache)
        self.decode_step = build.decode_step()
        self._tiles = tiles_of(self.decode_step)
        self.readback = build.readback(self.decode_step)
        self.scheduler = OnlineScheduler(scheduler, self.kv_manager, self.prefix_cache)
        if isinstance(self.readback, ReadOneBehind):
            self.readback.make_way = self.scheduler.evict_until_free
        self.prefill = build.prefill(self.scheduler, self.decode_step)
        parts.check_all_are_used()
        self.guard = Guard(self)
        if isinstance(self.decode_step, ResidentDecodeStep):
            self.decode_step.undoing = self.guard.bookkeeping
        self._abandoned: deque[Request] = deque()  # of streams that were left: cancelled before the next step
        self._next_request_id = 0
        self._counters = EngineCounters()
        self.delivery = Delivery(
            self.model.tokenizer,
            self._eos_token_ids,
            self.scheduler,
            self._counters,
            self.guard.bookkeeping,
        )

    def __repr__(self) -> str:
        names = (f"rung {rung.number}" for rung in LADDER.values() if rung.options == self.options)
        dtype = str(self.dtype).removeprefix("torch.")
        running, unfinished = len(self.scheduler.running), len(self.delivery.requests)
        return (
            f"InferenceEngine({next(names, 'own options')}, {self.model.name}, {self.device} {dtype}, "
            f"{running} running, {unfinished - running} waiting)"
        )

    # --- requests ----------------------------------------------------------------------------------

    def add_request(self, prompt: Prompt, params: SamplingParams = SamplingParams()) -> int:
        """Queue a request and return its id; `step` hands out its tokens.

        prompt: text, or token ids in order: a list, a 1-D array or tensor, a generator; no set, no bytes.
        Raises RequestError, with nothing queued, if it can never run.
        """
        token_ids = self.check_prompt(prompt, params)
        with self.guard:
            request = self._new_request(token_ids, params)
            try:
                self._enqueue(request)
                self.delivery.of_step.add(request.request_id)
            except BaseException:
                self._cancel([request])
                raise
        return request.request_id

    def check_prompt(self, prompt: Prompt, params: SamplingParams) -> tuple[int, ...]:
        """The prompt's token ids. Raises RequestError if they are not valid or can never fit."""
        return self.limits.check_prompt(prompt, params, self.model.tokenizer)

    def _new_request(self, token_ids: tuple[int, ...], params: SamplingParams) -> Request:
        decoder = TextDecoder(self.model.tokenizer, params.stop) if params.stop else None
        request = Request(self._next_request_id, token_ids, params, decoder=decoder)
        self._next_request_id += 1
        return request

    def _enqueue(self, request: Request) -> None:
        """Its caller has it already, so whatever fails from here on, it can be cancelled."""
        self.scheduler.add(request)  # first: if that fails, there is no such request
        self.delivery.requests[request.request_id] = request

    def cancel(self, request_id: int) -> Completion:
        """End a request now and give its blocks back; what it had generated is in the completion.

        Raises RequestError, with nothing changed, for what is not the id of an unfinished request.
        """
        with self.guard:
            number = whole(request_id)
            if number is None or (request := self.delivery.requests.get(number)) is None:
                raise RequestError(
                    f"there is no request {shown(request_id)} here; it may have ended "
                    "(request_id is the whole number that add_request returned)"
                )
            return self.delivery.end(request, FinishReason.CANCELLED)

    @property
    def has_work(self) -> bool:
        """Whether a request waits, joins or runs, or `step` has tokens to hand out."""
        return bool(self.delivery.requests or self.delivery.outbox)

    def stats(self) -> EngineStats:
        """The state of queues and memory now, and the counters so far."""
        return EngineStats(
            waiting=len(self.scheduler.waiting),
            joining=len(self.scheduler.joining),
            running=len(self.scheduler.running),
            free_blocks=self.kv_manager.num_free_blocks,
            blocks_per_layer=self.kv_manager.max_blocks_per_layer,
            prefix_entries=len(self.prefix_cache or ()),
            prefix_evictions=0 if self.prefix_cache is None else self.prefix_cache.num_evicted,
            append_paths=dict(self.kv_manager.append_paths),
            launch=launch_of(self.options, self.decode_step),
            tiles=self._tiles,
            cache=self._cache,
            scheduler=self.scheduler.config,
            # A copy in one piece: a step may be under way in another thread.
            counters=replace(self._counters, finished=dict(self._counters.finished)),
        )

    def check_integrity(self) -> None:
        """Prove that every request waits, joins or runs, and that every block is accounted for.

        So are the tokens: of a running request, all but the last are in the cache, and with a step in flight
        that one, too. Raises AssertionError naming what is off, or BrokenEngineError if that is known.
        """
        if self.guard.is_broken:
            raise BrokenEngineError(BROKEN)
        self.scheduler.check_queues(self.delivery.requests)
        self.kv_manager.check_integrity([*self.scheduler.sessions, *(self.prefix_cache or ())])
        self.scheduler.check_lengths(getattr(self.readback, "in_flight", None), self.readback.is_ahead)
        if lost := self.prefill.lost():
            raise AssertionError(f"no first token comes for requests {[r.request_id for r in lost]}")

    # --- the ways to drive it ----------------------------------------------------------------------

    def step(self) -> StepOutputs:
        """Run one step and hand out the tokens of all requests made by `add_request`.

        Where threads take turns, a step may hand out what another thread's step made, or leave all to that.
        """
        self._advance()  # an interrupt is raised here, and the tokens wait for the next call
        is_inside, empty = self.guard.is_inside, StepOutputs()
        # Without a call: an error on its way back would lose them, or another thread take them, too.
        if self.guard.inside and not is_inside:  # one that came in meanwhile may be changing them: they wait
            return empty
        outputs, self.delivery.outbox = self.delivery.outbox, empty
        return outputs

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),
    ) -> list[Completion]:
        """Run all prompts to their end; completions in the order of the prompts.

        prompts: a list of texts or of token ids; a single text gives a list of one completion.
        params: one for all, or one for each. Nothing runs if any prompt is refused, with RequestError; if
        a step fails, all of them are cancelled and the error is raised.
        """
        checked = [(self.check_prompt(prompt, p), p) for prompt, p in prompts_with_params(prompts, params)]
        with self.guard:
            requests = [self._new_request(token_ids, p) for token_ids, p in checked]
            try:
                for request in requests:
                    self._enqueue(request)
                while any(request.completion is None for request in requests):
                    self._advance()
                    self.guard.let_interrupts_in()
            finally:
                self._cancel(requests)
        return [request.completion for request in requests if request.completion is not None]

    def stream(self, prompt: Prompt, params: SamplingParams = SamplingParams()) -> Iterator[Chunk]:
        """Yield a request's text as it is made.

        Leaving the loop early cancels the request, and so does any error that comes out of it: another thread
        that is inside the engine, too.
        """
        return self._stream(self.check_prompt(prompt, params), params)

    def _stream(self, token_ids: tuple[int, ...], params: SamplingParams) -> Iterator[Chunk]:
        decoder, num_sent = TextDecoder(self.model.tokenizer, params.stop), 0
        request = completion = None
        try:
            with self.guard:
                request = self._new_request(token_ids, params)
                self._enqueue(request)
            while completion is None:
                if request.completion is None:  # another call's step may have ended it
                    with self.guard:
                        self._advance()
                completion = request.completion
                new_ids = request.output_token_ids[num_sent:]
                num_sent += len(new_ids)
                text = decoder.push(new_ids)
                if completion is not None:
                    text += decoder.finish()
                if new_ids or completion is not None:
                    yield Chunk(text, tuple(new_ids), completion)
        finally:
            if request is not None:
                self._abandon(request)

    def _abandon(self, request: Request) -> None:
        """Cancel the request of a stream that was left; behind the step in the middle of which that was."""
        self._abandoned.append(request)
        if not self.guard.is_inside:
            with contextlib.suppress(EngineBusyError, BrokenEngineError), self.guard:
                self._cancel_abandoned()

    def _cancel_abandoned(self) -> None:
        while self._abandoned:
            self._cancel([self._abandoned.popleft()])

    def _cancel(self, requests: Iterable[Request]) -> None:
        """End those of them that are queued or run. (In a broken engine there is nothing to be ended.)"""
        for request in requests:
            if request.request_id in self.delivery.requests and not self.guard.is_broken:
                self.delivery.end(request, FinishReason.CANCELLED)

    # --- a step ------------------------------------------------------------------------------------

    def _advance(self) -> None:
        with self.guard, self._on_device, torch.inference_mode():
            if self._abandoned:
                self._cancel_abandoned()
            self._run_step()

    def _run_step(self) -> None:
        self._counters.steps += 1
        try:
            if self.scheduler.config.decode_first:
                self._decode()
                self._launch_prompts()
                if self.prefill.due is not None:
                    self._join()
            else:
                if not self._launch_prompts():
                    self._decode()
                if self.prefill.due is not None and self._join():
                    self._launch_first()
        except BaseException:
            self.scheduler.put_back(self.prefill.lost())
            raise

    def _launch_prompts(self) -> bool:
        """Compute prompts, or have the device do so; whether the running requests have to wait for it."""
        scheduler, prefill = self.scheduler, self.prefill
        if not (scheduler.waiting or scheduler.joining or prefill.in_flight or prefill.due):
            return False
        started = time.perf_counter()
        is_waited_for = self.prefill.launch()
        self._counters.prefill_seconds += time.perf_counter() - started
        return is_waited_for

    def _join(self) -> bool:
        """Hand out the first tokens of requests that run from here on; False if there are none."""
        started = time.perf_counter()
        first = self.prefill.read()
        with self.guard.bookkeeping:
            self.prefill.join(first.requests)
            self._counters.reused_tokens += first.num_reused
            self._counters.prefill_tokens += first.num_computed
            self.delivery.accept(first.requests, first.token_ids)
        self._counters.prefill_seconds += time.perf_counter() - started
        return bool(first.requests)

    def _decode(self) -> None:
        """One more token for every running request."""
        started = time.perf_counter()
        if not self.readback.is_ahead:
            self._counters.preemptions += self.scheduler.make_room_to_decode()
        running = self.scheduler.running
        if not running:
            self.readback.drop()
            return
        tokens = self.readback.next_tokens(running)
        with self.guard.bookkeeping:
            self._counters.decode_steps += 1
            before = self._counters.generated_tokens
            batch = tokens.batch
            if batch is not None and batch.take(tokens.token_ids, self._eos_token_ids):
                self.delivery.hand_out_batch(batch, tokens.token_ids)
            else:
                self.delivery.accept(tokens.requests, tokens.token_ids)
                self._counters.drafted_tokens += tokens.num_drafted
                for later in tokens.more:
                    self._counters.accepted_tokens += len(later.requests)
                    unfinished = later.of_unfinished
                    self.delivery.accept(unfinished.requests, unfinished.token_ids)
            self._counters.decoded_tokens += self._counters.generated_tokens - before
        if not self.scheduler.running:  # a step may be in flight for requests that have just ended
            self.readback.drop()
        self._counters.decode_seconds += time.perf_counter() - started

    def _launch_first(self) -> None:
        """A newcomer's first decode step is in flight while its first token is handed out (rung 10)."""
        started = time.perf_counter()
        self.readback.launch_first(self.scheduler.running)
        self._counters.decode_seconds += time.perf_counter() - started
