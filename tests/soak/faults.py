"""What must hold on a small engine whose steps fail: nothing is lost, and no end looks better than it is."""

import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache

import torch
from fault_points import fault_points
from schedules import ERRORS, FAMILIES, PROMPTS, Fault, Schedule, draw_schedule, which_request
from tqdm import tqdm

from labkit.engine import CacheConfig, Chunk, FinishReason, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.sampling import logprobs_of
from labkit.errors import BrokenEngineError
from labkit.ladder import LADDER
from labkit.model import LanguageModel, load_model
from labkit.model.small import SMALL_MODELS, small_model
from labkit.options import EngineOptions
from labkit.watch.replaced import PlantedError, noting, replaced

MOST_STEPS = 400  # of a schedule: more than its tokens, failures and preemptions together
OF_A_FULL_BATCH = PROMPTS[1], SamplingParams(2)  # of each of its requests, at the end
PATIENCE = 3  # failed steps in a row after which a driver gives up
# Undoes a step. An error inside cannot be undone: the engine says that it can do no more.
UNDOING = "DeviceSlots.forget"


@dataclass
class Outcome:
    """What became of a schedule: which faults came, how requests ended, whether the engine went on."""

    fired: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    failed_steps: int = 0
    preemptions: int = 0
    said_it_cannot_go_on: bool = False


def sample_of(rung: str, num_schedules: int, seed: int, device: str) -> dict:
    """What became of this many schedules of a rung, counted together: a sample of a record.

    fired: how often each fault came, by where and how. ended: requests by how they ended. gave_up: schedules
    after which the engine said that it cannot go on. fell: each schedule in which something was not as
    promised, as the flags that run it again and what it was.
    """
    started = time.process_time()
    outcomes, fell = [], []
    for number in tqdm(range(num_schedules), f"rung {rung}", leave=False, disable=None):
        try:
            outcomes.append(run_numbered(rung, seed, number, device))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not error.args:  # it is yours, and not a planted one
                raise
            fell.append(f"--rungs {rung} --seed {seed} --only {number}: {error!r}")
    return {
        "rung": rung,
        "num_points": len({p for family in FAMILIES for p in points_called(LADDER[rung].options, family)}),
        "schedules": num_schedules,
        "fired": Counter(fired for outcome in outcomes for fired in outcome.fired),
        "failed_steps": sum(outcome.failed_steps for outcome in outcomes),
        "preemptions": sum(outcome.preemptions for outcome in outcomes),
        "ended": sum((outcome.ended for outcome in outcomes), Counter()),
        "gave_up": sum(outcome.said_it_cannot_go_on for outcome in outcomes),
        "fell": fell,
        "cpu_seconds": time.process_time() - started,
    }


def run_numbered(rung: str, seed: int, number: int, device: str) -> Outcome:
    """What became of a rung's schedule with this number; drawn from it alone, so that it can be run again."""
    options = LADDER[rung].options
    dice = random.Random(f"{seed} {rung} {number}")
    return run_schedule(options, schedule_for(options, dice), device)


def schedule_for(options: EngineOptions, dice: random.Random) -> Schedule:
    """A schedule of one of the families, with faults where an engine of these options comes by."""
    family = dice.choice(FAMILIES)
    return draw_schedule(dice, points_called(options, family), family)


def run_schedule(options: EngineOptions, schedule: Schedule, device: str = "cpu") -> Outcome:
    """Run a schedule on a fresh engine of these options. Raises AssertionError for what must never be."""
    return Trial(options, schedule, device).run()


class Trial:
    """One engine under a schedule, what each of its requests must get, and what it has got so far.

    A request's tokens are those that it gets alone on rung 00, or with keys and values in 8 bits alone on an
    engine of the same options, or the first of them. It ends as it was
    asked to, or is cancelled, or its own numbers were none. No failed step loses a block, or a token of a
    request that goes on.
    """

    def __init__(self, options: EngineOptions, schedule: Schedule, device: str = "cpu") -> None:
        self.schedule = schedule
        self._reference, self._near = LADDER["00"].options, 1e-3
        if options.kv_cache_dtype != "auto":  # the last bit of a sum may round a value to its neighbour
            self._reference, self._near = options, 1e-2
        self.engine = InferenceEngine(
            model_on(schedule.family, device),
            options,
            device=device,
            dtype=torch.float32,
            cache=schedule.cache,
            scheduler=schedule.scheduler,
        )
        step, budget = getattr(self.engine.prefill, "chunk_step", None), schedule.scheduler.prefill_max_tokens
        if step is not None and budget is not None and budget % 3 == 0:  # so that several are in flight
            step.max_tokens = -(-step.max_tokens // 4)
        self.points = fault_points(self.engine)  # before one is planted that hides another
        asked = [which_request(number) for move, number in schedule.moves if move in ("add", "open")]
        for request in (*asked, OF_A_FULL_BATCH):  # before one is planted in a part that all engines share
            self._alone(*request)
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
        """A new request. If that fails, there is none."""
        prompt, params = which_request(number)
        try:
            request_id = self.engine.add_request(prompt, params)
        except BrokenEngineError:
            raise
        except BaseException as error:
            self._failed(error)
            return
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
        if outputs:  # one that only launched a chunk (rung 13) does not show that it works again
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

    def throw(self, number: int) -> None:
        """The reader of a stream raises in the middle of it, and gets its own error back."""
        if self.streams:
            error = PlantedError("the reader has failed")
            try:
                self.streams.pop(number % len(self.streams)).chunks.throw(error)
            except PlantedError as raised:
                assert raised is error
            else:
                raise AssertionError("a reader's error was swallowed")

    # --- what must hold ----------------------------------------------------------------------------

    def _alone(self, prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        return alone(prompt, params, str(self.engine.device), self.schedule.family, self._reference)

    def unfinished(self) -> list[int]:
        """The ids of requests that wait, join or run."""
        return [request.request_id for request in self.engine.scheduler.requests]

    def _failed(self, error: BaseException) -> None:
        """A call has failed: by a fault that came, and as that one said."""
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
        made, known = logprobs_of(token_ids), logprobs_of(expected[: len(token_ids)])
        assert len(made) == len(known), "log probabilities were lost"
        differences = [abs(one.logprob - other.logprob) for one, other in zip(made, known, strict=True)]
        assert all(difference < self._near for difference in differences), differences
        if reason is FinishReason.LENGTH:
            assert token_ids == expected, f"{token_ids} is called complete, but {expected} is"
        self.outcome.ended[str(reason)] += 1
        no_numbers = sum(fired.endswith("no numbers") for fired in self.outcome.fired)
        assert reason is not FinishReason.ERROR or self.outcome.ended["error"] <= no_numbers, "not its fault"

    def _serves_a_full_batch(self) -> None:
        """Nothing that a batch needs, such as a slot for each request, was lost."""
        prompt, params = OF_A_FULL_BATCH
        prompts = [prompt] * self.schedule.scheduler.max_batch_size
        made = [completion.token_ids for completion in self.engine.generate(prompts, params)]
        assert made == [self._alone(prompt, params)] * len(prompts), "what failed before has left a trace"

    def _says_that_it_cannot_go_on(self) -> None:
        """Only what cannot be undone may end so, and then every call says it."""
        self.outcome.said_it_cannot_go_on = True
        torn = [fired for fired in self.outcome.fired if fired.startswith(UNDOING)]
        assert torn, f"the engine gave up after {self.outcome.fired}"
        for call in (self.engine.step, lambda: self.engine.add_request((1,)), self.engine.check_integrity):
            try:
                call()
            except BrokenEngineError:
                continue
            raise AssertionError("a broken engine went on")


@dataclass
class OpenStream:
    """A stream, the tokens that it must give, and those that it gave so far."""

    chunks: Generator[Chunk]
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
    assert (stats.waiting, stats.joining, stats.running) == (0, 0, 0)
    assert stats.free_blocks == stats.blocks_per_layer, f"{stats.blocks_per_layer - stats.free_blocks} lost"


@cache
def model_on(name: str, device: str) -> LanguageModel:
    """A model in float32: of a family of schedules, or what `load_model` takes."""
    model = small_model(config=SMALL_MODELS[name]) if name in SMALL_MODELS else load_model(name)
    return model.to(device, torch.float32)


@cache
def alone(
    prompt: tuple[int, ...],
    params: SamplingParams,
    device: str,
    model: str = "small",
    options: EngineOptions = LADDER["00"].options,
) -> tuple[int, ...]:
    """What a request gets by itself on an engine of these options, with nothing cached."""
    engine = InferenceEngine(
        model_on(model, device),
        options,
        device=device,
        dtype=torch.float32,
        cache=CacheConfig(16, prefix_cache=False),
        scheduler=SchedulerConfig(1),
    )
    return engine.generate([prompt], params)[0].token_ids


@cache
def points_called(options: EngineOptions, family: str, num_schedules: int = 5) -> tuple[str, ...]:
    """The fault points that undisturbed schedules on an engine of these options come by: of all that eight
    do, five have left out none."""
    called: Counter[str] = Counter()
    for seed in range(num_schedules):
        trial = Trial(options, draw_schedule(random.Random(seed), (), family))
        with ExitStack() as stack:
            for point, (owner, name) in trial.points.items():
                note = noting(lambda *_, point=point, **__: called.update([point]))
                stack.enter_context(replaced(owner, name, note))
            trial.run()
    return tuple(sorted(called))
