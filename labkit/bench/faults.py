"""Random schedules of requests on a small engine, failures in the middle of them, and what must hold."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cache

import torch

from labkit.engine import CacheConfig, Chunk, FinishReason, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.errors import BrokenEngineError, OutOfBlocksError
from labkit.model import LanguageModel
from labkit.model.small import small_model
from labkit.options import EngineOptions
from labkit.watch.failures import PlantedError, planted_failure, planted_nan
from labkit.watch.fault_points import FaultPoint, fault_points
from labkit.watch.replaced import noting, replaced

# Many begin with another one, so that the prefix cache has whole and partial hits.
PROMPTS = ((1,), (1, 2, 3), (1, 2, 3, 4, 5, 6), (1, 2, 3, 9), (7, 8), tuple(range(20, 30)))
PARAMS = (
    *(SamplingParams(1), SamplingParams(4), SamplingParams(9)),
    SamplingParams(6, temperature=1.0, top_k=40, top_p=0.95, seed=3),
)
LONGEST = max(map(len, PROMPTS)) + max(p.max_new_tokens for p in PARAMS) - 1  # tokens in the cache
MOVES = {"add": 4, "step": 8, "cancel": 1, "open": 1, "read": 2, "leave": 1}  # each with its weight
MOST_STEPS = 400  # of a schedule: more than its tokens, failures and preemptions together
PATIENCE = 3  # failed steps in a row after which a driver gives up

ERRORS: tuple[Callable[[str], BaseException], ...] = (
    *(PlantedError, OutOfBlocksError, torch.OutOfMemoryError),
    KeyboardInterrupt,  # no Exception
)
# Calls that give the device work, whose error may come when the work is done.
DEVICE_WORK = {
    *("prefill", "decode_one_token", "device_step", "layer", "attention"),
    *("append_prompt", "append_token", "append_token_batch", "kv_append", "write", "write_batch"),
    *("build", "fill", "send", "send_mapping", "send_states", "send_rows"),
    *("sample", "draw_and_advance", "advance", "start_copy", "read"),
}
# Undoes a step. An error inside cannot be undone: the engine says that it can do no more.
UNDOING = "DeviceSlots.forget"


@dataclass(frozen=True)
class Fault:
    """A call that goes wrong.

    point: one of `fault_points`. move: number of the move before which it is planted. at_call: its calls
    from there on that work before. harm: "in its place", an error; "from there on", one in every call;
    "behind its work", when that is done; "no numbers", NaN for one request. row: of that request.
    """

    point: str
    move: int
    at_call: int
    harm: str
    error: Callable[[str], BaseException]
    row: int

    def planted(
        self, points: Mapping[str, FaultPoint], look: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """The context in which it is there. points: of the engine. look: called when it fails."""
        owner, name = points[self.point]
        if self.harm == "no numbers":
            return planted_nan(owner, name, self.at_call, self.row, look)
        return planted_failure(
            owner,
            name,
            self.at_call,
            look,
            error=self.error,
            num_calls=math.inf if self.harm == "from there on" else 1,
            is_behind=self.harm == "behind its work",
        )


@dataclass(frozen=True)
class Schedule:
    """An engine's settings, the moves of those who use it, and what fails among them.

    moves: names of MOVES, each with a number that says which prompt, request or stream it is about.
    """

    cache: CacheConfig
    scheduler: SchedulerConfig
    moves: tuple[tuple[str, int], ...]
    faults: tuple[Fault, ...]


@dataclass
class Outcome:
    """What became of a schedule: which faults came, how requests ended, whether the engine went on."""

    fired: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    failed_steps: int = 0
    preemptions: int = 0
    said_it_cannot_go_on: bool = False


def draw_schedule(dice: random.Random, points: Sequence[str]) -> Schedule:
    """A schedule with one or two faults, each at one of these points. Without points there is no fault."""
    block_size = dice.randint(1, 6)
    cache = CacheConfig(
        block_size=block_size,
        max_blocks_per_layer=-(-LONGEST // block_size) + dice.randint(0, 6),
        prefix_cache=dice.random() < 0.75,
        max_prefix_entries=dice.randint(1, 4),
    )
    scheduler = SchedulerConfig(
        max_batch_size=dice.randint(1, 4),
        prefill_max_batch_size=dice.randint(1, 4),
        prefill_max_tokens=dice.randint(1, 20),
        admission_policy=dice.choice(["fifo", "pack"]),
        pack_window=dice.randint(1, 3),
        decode_first=dice.random() < 0.5,
    )
    names, weights = zip(*MOVES.items(), strict=True)
    moves = [("add", dice.randrange(100)) for _ in range(2)]
    moves += [(dice.choices(names, weights)[0], dice.randrange(100)) for _ in range(dice.randint(4, 24))]
    if not cache.prefix_cache:
        points = [point for point in points if not point.startswith("PrefixCache.")]
    faults = [draw_fault(dice, points, len(moves)) for _ in range(dice.choice([1, 1, 2]))] if points else []
    return Schedule(cache, scheduler, tuple(moves), tuple(faults))


def draw_fault(dice: random.Random, points: Sequence[str], num_moves: int) -> Fault:
    """A fault at one of these points, before one of so many moves."""
    point = dice.choice(points)
    name = point.split(".")[1]
    harms = ["in its place", "from there on"]
    harms += ["behind its work"] * (name in DEVICE_WORK) + ["no numbers"] * 3 * (name == "attention")
    return Fault(
        point,
        move=dice.randrange(num_moves),
        at_call=dice.choice([0, 0, 1, 2, 3, 5, 8]),
        harm=dice.choice(harms),
        error=dice.choice(ERRORS),
        row=dice.randrange(4),
    )


def run_schedule(options: EngineOptions, schedule: Schedule, device: str = "cpu") -> Outcome:
    """Run a schedule on a fresh engine of these options. Raises AssertionError for what must never be."""
    return Trial(options, schedule, device).run()


class Trial:
    """One engine under a schedule, what each of its requests must get, and what it has got so far.

    A request's tokens are those that it gets alone on rung 00, or the first of them. It ends as it was
    asked to, or is cancelled, or its own numbers were none. No failed step loses a block, or a token of a
    request that goes on.
    """

    def __init__(self, options: EngineOptions, schedule: Schedule, device: str = "cpu") -> None:
        self.schedule = schedule
        self.engine = InferenceEngine(
            model_on(device),
            options,
            device=device,
            dtype=torch.float32,
            cache=schedule.cache,
            scheduler=schedule.scheduler,
        )
        self.points = fault_points(self.engine)  # before one is planted that hides another
        self.expected: dict[int, tuple[int, ...]] = {}
        self.received: dict[int, tuple[int, ...]] = {}  # of requests that have not ended
        self.streams: list[OpenStream] = []
        self.outcome = Outcome()
        self.failures_in_a_row = 0
        self._planted = ExitStack()

    def run(self) -> Outcome:
        """All moves, then steps until no work is left."""
        with self._planted:
            try:
                self._run()
            except BrokenEngineError:
                self._says_that_it_cannot_go_on()
        return self.outcome

    def _run(self) -> None:
        for i, (move, number) in enumerate(self.schedule.moves):
            self._plant_what_comes_before(i)
            getattr(self, move)(number)
            self.engine.check_integrity()
        for stream in self.streams:
            stream.leave()
        for _ in range(MOST_STEPS):
            if not self.engine.has_work:
                break
            self.step()
            self.engine.check_integrity()
        assert not self.engine.has_work, f"still at work after {MOST_STEPS} steps"
        assert not self.received, f"never ended: {self.received}"
        self.outcome.preemptions = self.engine.stats().counters.preemptions
        self._planted.close()
        assert_nothing_is_held(self.engine)
        self._serves_a_full_batch()

    def _plant_what_comes_before(self, move: int) -> None:
        for fault in self.schedule.faults:
            if fault.move == move:
                look = self._note(fault)
                self._planted.enter_context(fault.planted(self.points, look))

    def _note(self, fault: Fault) -> Callable[[], None]:
        return lambda: self.outcome.fired.append(f"{fault.point}, {fault.harm}")

    # --- moves -------------------------------------------------------------------------------------

    def add(self, number: int) -> None:
        """A new request."""
        prompt, params = which_request(number)
        request_id = self.engine.add_request(prompt, params)
        self.expected[request_id], self.received[request_id] = self._alone(prompt, params), ()

    def step(self, _: int = 0) -> None:
        """One step. One that fails again and again is given up: the driver cancels everything."""
        try:
            outputs = self.engine.step()
        except BrokenEngineError:
            raise
        except BaseException as error:
            self._failed(error)
            return
        self.failures_in_a_row = 0
        for request_id, token_id, completion in outputs:
            if token_id is not None:
                self.received[request_id] += (token_id,)
            assert is_beginning(self.received[request_id], self.expected[request_id])
            if completion is not None:
                self._ended(request_id, completion.finish_reason, completion.token_ids)

    def cancel(self, number: int) -> None:
        """One of the requests is cancelled."""
        if self.received:
            request_id = list(self.received)[number % len(self.received)]
            if request_id in self.unfinished():
                completion = self.engine.cancel(request_id)
                self._ended(request_id, completion.finish_reason, completion.token_ids)

    def open(self, number: int) -> None:
        """A new stream."""
        prompt, params = which_request(number)
        self.streams.append(OpenStream(self.engine.stream(prompt, params), self._alone(prompt, params)))

    def read(self, number: int) -> None:
        """The next chunk of a stream, which steps the engine; a step that fails is this stream's end."""
        if not self.streams:
            return
        stream = self.streams.pop(number % len(self.streams))
        try:
            chunk = next(stream.chunks)
        except BrokenEngineError:
            raise
        except BaseException as error:
            self._failed(error)
            return
        stream.received += chunk.token_ids
        assert is_beginning(stream.received, stream.expected)
        if chunk.completion is None:
            self.streams.append(stream)
        else:
            self._judge(chunk.completion.finish_reason, stream.received, stream.expected)

    def leave(self, number: int) -> None:
        """The reader of a stream goes away."""
        if self.streams:
            self.streams.pop(number % len(self.streams)).leave()

    # --- what must hold ----------------------------------------------------------------------------

    def _alone(self, prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        return alone(prompt, params, str(self.engine.device))

    def unfinished(self) -> list[int]:
        """The ids of requests that wait or run."""
        scheduler = self.engine.scheduler
        return [request.request_id for request in (*scheduler.running, *scheduler.waiting)]

    def _failed(self, error: BaseException) -> None:
        """A step has failed: by a fault that came, and as that one said."""
        assert self.outcome.fired and isinstance(error, ERRORS) and "was made to fail" in str(error), error
        self.outcome.failed_steps += 1
        self.failures_in_a_row += 1
        if self.failures_in_a_row >= PATIENCE:
            for request_id in set(self.unfinished()) & self.received.keys():
                completion = self.engine.cancel(request_id)
                self._ended(request_id, completion.finish_reason, completion.token_ids)
            self._planted.close()  # it works again
            self.failures_in_a_row = 0

    def _ended(self, request_id: int, reason: FinishReason, token_ids: tuple[int, ...]) -> None:
        received = self.received.pop(request_id)
        assert is_beginning(received, token_ids), f"{received} was handed out of {token_ids}"
        self._judge(reason, token_ids, self.expected[request_id])

    def _judge(self, reason: FinishReason, token_ids: tuple[int, ...], expected: tuple[int, ...]) -> None:
        assert is_beginning(token_ids, expected), f"{token_ids} instead of {expected}"
        if reason is FinishReason.LENGTH:
            assert token_ids == expected, f"{token_ids} is called complete, but {expected} is"
        self.outcome.ended[str(reason)] += 1
        no_numbers = sum(fired.endswith("no numbers") for fired in self.outcome.fired)
        assert reason is not FinishReason.ERROR or self.outcome.ended["error"] <= no_numbers, "not its fault"

    def _serves_a_full_batch(self) -> None:
        """Nothing that a batch needs, such as a slot for each request, was lost."""
        prompts, params = [PROMPTS[1]] * self.schedule.scheduler.max_batch_size, PARAMS[1]
        made = [completion.token_ids for completion in self.engine.generate(prompts, params)]
        assert made == [self._alone(prompts[0], params)] * len(prompts), "what failed before has left a trace"

    def _says_that_it_cannot_go_on(self) -> None:
        """Only what cannot be undone may end so, and then every call says it."""
        self.outcome.said_it_cannot_go_on = True
        torn = [fired for fired in self.outcome.fired if fired.startswith(UNDOING)]
        assert torn, f"the engine gave up after {self.outcome.fired}"
        for call in (self.engine.step, lambda: self.engine.add_request((1,)), lambda: self.engine.scheduler):
            try:
                call()
            except BrokenEngineError:
                continue
            raise AssertionError("a broken engine went on")


@dataclass
class OpenStream:
    """A stream, the tokens that it must give, and those that it gave so far."""

    chunks: Iterator[Chunk]
    expected: tuple[int, ...]
    received: tuple[int, ...] = ()

    def leave(self) -> None:
        """Stop reading it."""
        self.chunks.close()


def is_beginning(part: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether `whole` begins with `part`."""
    return tuple(whole[: len(part)]) == tuple(part)


def assert_nothing_is_held(engine: InferenceEngine) -> None:
    """No request, and no block but those that the prefix cache gives back."""
    engine.check_integrity()
    if engine.prefix_cache is not None:
        engine.prefix_cache.clear()
    stats = engine.stats()
    assert (stats.waiting, stats.running) == (0, 0)
    assert stats.free_blocks == stats.blocks_per_layer, f"{stats.blocks_per_layer - stats.free_blocks} lost"


def which_request(number: int) -> tuple[tuple[int, ...], SamplingParams]:
    """A prompt and parameters by number."""
    return PROMPTS[number % len(PROMPTS)], PARAMS[number // len(PROMPTS) % len(PARAMS)]


@cache
def model_on(device: str) -> LanguageModel:
    """The model of all schedules."""
    return small_model().to(device, torch.float32)


@cache
def alone(prompt: tuple[int, ...], params: SamplingParams, device: str) -> tuple[int, ...]:
    """What a request gets by itself on rung 00, with nothing cached."""
    cache = CacheConfig(4, prefix_cache=False)
    engine = InferenceEngine(model_on(device), device=device, dtype=torch.float32, cache=cache)
    return engine.generate([prompt], params)[0].token_ids


@cache
def points_called(options: EngineOptions, num_schedules: int = 16) -> tuple[str, ...]:
    """The fault points that undisturbed schedules on an engine of these options come by."""
    called: Counter[str] = Counter()
    for seed in range(num_schedules):
        trial = Trial(options, draw_schedule(random.Random(seed), ()))
        with ExitStack() as stack:
            for point, (owner, name) in trial.points.items():
                note = noting(lambda *_, point=point, **__: called.update([point]))
                stack.enter_context(replaced(owner, name, note))
            trial.run()
    return tuple(sorted(called))
