"""A flood: far more requests than the pool has blocks for, and what must hold of every one of them."""

import asyncio
import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from faults import alone, assert_nothing_is_held, model_on
from http_flood import SAMPLED_EVERY, resident

from labkit.engine import CacheConfig, FinishReason, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.request import Request
from labkit.engine.scheduler import Admitted
from labkit.engine.stats import EngineStats
from labkit.engine.streaming import AsyncTokenStream, StreamingServer
from labkit.errors import RequestError
from labkit.ladder import LADDER
from labkit.model.small import LONGEST, VOCAB_SIZE
from labkit.options import EngineOptions
from labkit.watch.replaced import noting, replaced

SMALL = "random:small"  # the model of a CPU
BLOCK_SIZE = 16
ROOM_FOR = 40  # requests of average size, whose blocks the pool has
MAX_BATCH_SIZE, PACK_WINDOW = 64, 16
NUM_SHARED = 8  # texts with which prompts begin
STREAM_INTERVAL = 4  # tokens in a chunk
CHECK_EVERY = 20  # of so many requests, one's tokens are compared with those that it gets alone
WISHES = {"all": 80, "cancel": 10, "leave": 5, "impossible": 5}  # each with its weight


@dataclass(frozen=True)
class Wish:
    """What a client asks for, and when it has enough.

    kind: "all" reads to the end, "cancel" closes the stream after so many tokens, "leave" drops it without a
    word, "impossible" asks for what no engine of this model has room for.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    kind: str
    after: int


def draw_wishes(
    dice: random.Random,
    num: int,
    longest_prompt: int,
    most_new_tokens: int,
    max_positions: int = LONGEST,
) -> list[Wish]:
    """Wishes of random shapes: most prompts are short, some long; three in ten begin as others do.

    max_positions: of the model. A text that would be longer asks for fewer new tokens.
    """
    shared = [draw_tokens(dice, max(1, longest_prompt * (i + 1) // 40)) for i in range(NUM_SHARED)]
    kinds, weights = zip(*WISHES.items(), strict=True)
    wishes = []
    for _ in range(num):
        length = 1 + int(longest_prompt * dice.random() ** 2)
        beginning = dice.choice(shared) if dice.random() < 0.3 else ()
        prompt = (beginning + draw_tokens(dice, length))[:length]
        kind = dice.choices(kinds, weights)[0]
        if kind == "impossible":
            prompt = draw_tokens(dice, 2 * max_positions)
        num_new = min(1 + int(most_new_tokens * dice.random() ** 1.5), max(1, max_positions - length))
        temperature = 0.0 if dice.random() < 0.8 else 1.0
        params = SamplingParams(num_new, temperature, top_k=40, seed=dice.randrange(100), stop_on_eos=False)
        wishes.append(Wish(prompt, params, kind, after=dice.randrange(num_new)))
    return wishes


def draw_tokens(dice: random.Random, length: int) -> tuple[int, ...]:
    """So many random token ids."""
    return tuple(dice.choices(range(VOCAB_SIZE), k=length))


def flood_engine(
    options: EngineOptions,
    wishes: Sequence[Wish],
    policy: str,
    device: str = "cpu",
    room_for: int = ROOM_FOR,
    model: str = SMALL,
) -> InferenceEngine:
    """An engine whose pool has the blocks of `room_for` requests of average size, in float32.

    policy: of admission. model: "random:small", or what load_model takes.
    """
    sizes = [len(w.prompt) + w.params.max_new_tokens for w in wishes if w.kind != "impossible"]
    longest = -(-max(sizes) // BLOCK_SIZE)
    return InferenceEngine(
        model_on(model, device),
        options,
        device=device,
        dtype=torch.float32,
        cache=CacheConfig(BLOCK_SIZE, max(longest, room_for * sum(sizes) // len(sizes) // BLOCK_SIZE)),
        scheduler=SchedulerConfig(
            max_batch_size=MAX_BATCH_SIZE, admission_policy=policy, pack_window=PACK_WINDOW
        ),
    )


@dataclass
class Wait:
    """A request that was not admitted yet.

    bound: the steps after which those ahead of it have made all their tokens, at one token per step, and
        where prompts are computed in chunks (rung 13) at one chunk per step before.
    """

    arrived: int  # the step
    bound: int
    times_passed_over: int = 0  # admissions of one that came later


class Waits:
    """The worst of all waits so far.

    longest: in steps. nearest_to_bound: the largest share of its bound that a wait has taken.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self.longest = self.most_passed_over = self.most_waiting = 0
        self.nearest_to_bound = 0.0
        self._engine = engine
        self._waiting = engine.scheduler.waiting
        self._open: WeakKeyDictionary[Request, Wait] = WeakKeyDictionary()

    def note_arrival(self, request: Request) -> None:
        """A request joins the queue: all who are there are ahead of it."""
        self.most_waiting = max(self.most_waiting, len(self._waiting) + 1)
        ahead = sum(map(self._steps_of, self._engine.scheduler.requests))
        self._open[request] = Wait(self._num_steps(), bound=ahead + 1)

    def note_admissions(self, admitted: list[Admitted]) -> None:
        """Requests leave the queue; those that were there before them wait on."""
        step = self._num_steps()
        for request, _, _ in admitted:
            wait = self._open.pop(request, None)  # None: it was preempted, and waited for a second time
            if wait is not None:
                self.longest = max(self.longest, step - wait.arrived)
                self.nearest_to_bound = max(self.nearest_to_bound, (step - wait.arrived) / wait.bound)
        latest = max((request.request_id for request, _, _ in admitted), default=-1)
        for request in self._waiting:
            if request.request_id < latest and (wait := self._open.get(request)):
                wait.times_passed_over += 1
                self.most_passed_over = max(self.most_passed_over, wait.times_passed_over)
                later = (r for r, _, _ in admitted if r.request_id > request.request_id)
                wait.bound += sum(map(self._steps_of, later))

    def _steps_of(self, request: Request) -> int:
        """Steps that a request takes by itself: a token each, and on rung 13 its chunks, read one behind."""
        tokens_left = request.params.max_new_tokens - len(request.output_token_ids)
        if self._engine.options.batching == "padded":
            return tokens_left
        config = self._engine.scheduler.config
        chunk = min(config.prefill_max_tokens, config.prefill_chunk_tokens)
        return tokens_left + -(-request.num_tokens // chunk)

    def _num_steps(self) -> int:
        return self._engine.stats().counters.steps


@contextmanager
def record_waits(engine: InferenceEngine) -> Iterator[Waits]:
    """Watch who waits inside the block. A request that is admitted again after a preemption counts once."""
    waits = Waits(engine)

    def noting_admissions(admit: Callable[..., list[Admitted]]) -> Callable[..., list[Admitted]]:
        def admit_and_note(*room: int) -> list[Admitted]:
            admitted = admit(*room)
            waits.note_admissions(admitted)
            return admitted

        return admit_and_note

    scheduler = engine.scheduler
    with (
        replaced(scheduler, "add", noting(waits.note_arrival)),
        replaced(scheduler, "admit", noting_admissions),
    ):
        yield waits


class Flood:
    """All wishes through one engine and one server, from `at_once` clients on one event loop.

    Raises AssertionError for what must never be: an end that was not asked for, a block that is lost, a wait
    beyond its bound.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        wishes: Sequence[Wish],
        at_once: int,
        check_every: int = CHECK_EVERY,
    ) -> None:
        self.engine = engine
        self.at_once = at_once
        self.check_every = check_every
        self._wishes = deque(enumerate(wishes))
        self._read_to_the_end: list[tuple[Wish, tuple[int, ...]]] = []  # to be compared
        self._ended: Counter[str] = Counter()
        self._peak_blocks = 0
        self._memory: list[int] = []
        self._tensors: list[int] = []

    def run(self, rung: str, progress: Callable[[int], object] = lambda num_ended: None) -> dict:
        """Serve all clients, and count what became of them: a sample of a record.

        rung: the engine's. progress: called with the number of requests that have ended, whenever one has.
        """
        before, started = self.engine.stats(), time.perf_counter()
        with record_waits(self.engine) as waits:
            with StreamingServer(self.engine, stream_interval=STREAM_INTERVAL) as server:
                asyncio.run(self._serve(server, progress))
            after, seconds = self.engine.stats(), time.perf_counter() - started
        assert waits.nearest_to_bound <= 1, "a request has waited too long"
        assert_nothing_is_held(self.engine)
        return self._counted(rung, before, after, seconds, waits)

    async def _serve(self, server: StreamingServer, progress: Callable[[int], object]) -> None:
        async with asyncio.TaskGroup() as clients:
            for _ in range(self.at_once):
                clients.create_task(self._client(server, progress))
        while self.engine.has_work:  # the worker cancels for those who left
            await asyncio.sleep(0.001)

    async def _client(self, server: StreamingServer, progress: Callable[[int], object]) -> None:
        """Ask for one wish after the other, as long as there are any."""
        while self._wishes:
            number, wish = self._wishes.popleft()
            try:
                stream = server.submit_async(wish.prompt, wish.params)
            except RequestError:
                assert wish.kind == "impossible", "refused without reason"
                self._ended["refused"] += 1
            else:
                assert wish.kind != "impossible", "taken, although it can never run"
                self._ended[await self._read(stream, number, wish)] += 1
                del stream  # who leaves without a word drops it
            self._look()
            progress(sum(self._ended.values()))

    async def _read(self, stream: AsyncTokenStream, number: int, wish: Wish) -> str:
        """Read as much as was wished; how that ended."""
        token_ids: list[int] = []
        async for chunk in stream:
            token_ids += chunk.token_ids
            if chunk.completion is not None:
                assert chunk.completion.finish_reason is FinishReason.LENGTH, chunk.completion
                assert chunk.completion.token_ids == tuple(token_ids), "lost or doubled tokens"
                assert len(token_ids) == wish.params.max_new_tokens
                if number % self.check_every == 0 and wish.params.is_greedy:
                    self._read_to_the_end.append((wish, tuple(token_ids)))
                return "length"
            if wish.kind == "cancel" and len(token_ids) >= wish.after:
                stream.close()
                return "cancelled"
            if wish.kind == "leave" and len(token_ids) >= wish.after:
                return "left"
        raise AssertionError("a stream has ended without its completion")

    def _look(self) -> None:
        stats = self.engine.stats()
        self._peak_blocks = max(self._peak_blocks, stats.blocks_per_layer - stats.free_blocks)
        if sum(self._ended.values()) % SAMPLED_EVERY == 0:
            self._memory.append(bytes_held(self.engine.device))
            if self.engine.device.type == "cuda":
                self._tensors.append(torch.cuda.memory_allocated(self.engine.device))

    def _counted(
        self, rung: str, before: EngineStats, after: EngineStats, seconds: float, waits: Waits
    ) -> dict:
        """ended: requests by how they ended. checked: of how many the tokens were compared with those that
        they get alone; equal: how many were the same. Waits are in steps until a first admission;
        nearest_to_bound: the largest share of its bound that one has taken. memory: bytes of the process,
        and of a GPU those that PyTorch's allocator has taken, after each hundred requests; tensors: those
        of them that tensors hold.
        """
        model, device = self.engine.model.name, str(self.engine.device)
        options = self.engine.options  # in 8 bits a rung's tokens are its own
        reference = LADDER["00"].options if options.kv_cache_dtype == "auto" else options
        counted = ("steps", "generated_tokens", "prefill_tokens", "reused_tokens", "preemptions")
        return {
            "rung": rung,
            "policy": self.engine.scheduler.config.admission_policy,
            "ended": self._ended,
            "checked": len(self._read_to_the_end),
            "equal": sum(
                alone(w.prompt, w.params, device, model, reference) == m for w, m in self._read_to_the_end
            ),
            "seconds": seconds,
            **{name: getattr(after.counters, name) - getattr(before.counters, name) for name in counted},
            "prefix_evictions": after.prefix_evictions - before.prefix_evictions,
            "num_blocks": after.blocks_per_layer,
            "peak_blocks": self._peak_blocks,
            "peak_waiting": waits.most_waiting,
            "longest_wait": waits.longest,
            "nearest_to_bound": waits.nearest_to_bound,
            "most_passed_over": waits.most_passed_over,
            "memory": self._memory,
            "tensors": self._tensors,
        }


def bytes_held(device: torch.device) -> int:
    """Memory of this process now (0 where there is no /proc), and of a GPU what PyTorch has taken of it."""
    return resident(os.getpid()) + (torch.cuda.memory_reserved(device) if device.type == "cuda" else 0)
