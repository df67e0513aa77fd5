"""Lesson 10: host and GPU on one clock, tokens in flight, what breaks, recorded runs, and the exercises."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from statistics import median
from types import FrameType
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from labkit.bench import dense_tokens, transformers_tokens
from labkit.engine import Completion, InferenceEngine, SamplingParams, StepOutput
from labkit.engine.overlap import ReadOneBehind
from labkit.engine.request import RunningRequests
from labkit.engine.step.resident import StepInFlight
from labkit.engine.step.staging import PinnedTokens, TokenCopy
from labkit.learn.exercise import Case, Exercise
from labkit.model import LanguageModel
from labkit.results import (
    CostCardRecord,
    DeviceTimeRecord,
    HostTimeRecord,
    RunsRecord,
    TracedStep,
    speedup,
    speedup_interval,
)
from labkit.show.schedule import Busy
from labkit.watch import PlantedError, planted_failure, profiled_by, record_flights

# --- host and GPU on one clock ----------------------------------------------------------------------------


EVEN_AFTER = 200  # steps: with more of them ahead, the slower of the two decides only after a while


class StepWork(NamedTuple):
    """What one step takes, in microseconds: of the host before the GPU can begin, of the GPU, and of the host
    after the tokens have arrived."""

    launch: float
    gpu: float
    accept: float

    @property
    def host(self) -> float:
        """Microseconds of the host in all."""
        return self.launch + self.accept


def simulate(work: StepWork, num_steps: int, ahead: int = 0, synchronize: bool = False) -> list[Busy]:
    """Steps of a host that launches `ahead` steps before it reads one, and of a GPU that runs them in order.

    synchronize: the host waits for all that it launched after each step, as a careless benchmark does.
    """
    schedule: list[Busy] = []
    host = gpu = 0.0  # when each of them is free
    gpu_ends: list[float] = []  # of the steps launched so far
    for step in range(num_steps):
        while len(gpu_ends) <= min(step + ahead, num_steps - 1):
            number = len(gpu_ends)
            schedule.append(Busy("host", "launch", number, host, host + work.launch))
            host += work.launch
            begins = max(host, gpu)
            gpu = begins + work.gpu
            gpu_ends.append(gpu)
            schedule.append(Busy("GPU", "gpu", number, begins, gpu))
        begins = max(host, gpu_ends[step])  # wait for the tokens
        host = begins + work.accept
        schedule.append(Busy("host", "accept", step, begins, host))
        if synchronize:
            host = max(host, gpu)
    return schedule


def step_time(work: StepWork, ahead: int = 0, synchronize: bool = False) -> float:
    """Microseconds from the tokens of one step to those of the next in the simulation, once it runs
    evenly."""
    schedule = simulate(work, EVEN_AFTER + 10, ahead, synchronize)
    handed_out = [busy.end for busy in schedule if busy.work == "accept"]
    return handed_out[EVEN_AFTER + 1] - handed_out[EVEN_AFTER]


def work_of(step: TracedStep) -> StepWork:
    """The work of a recorded step that was read at once: the GPU's part as measured, and the rest as the
    host's, half before it and half after it."""
    return StepWork(step.idle_us / 2, step.gpu_busy_us, step.idle_us / 2)


def overlap_table(record: DeviceTimeRecord, before: str, after: str) -> pd.DataFrame:
    """Microseconds of recorded steps, a row per batch size: the two parts and the step of rung `before`, the
    larger part alone, and the step of rung `after`."""
    steps = record.steps
    rows = {}
    for (rung, batch_size), step in steps.items():
        if rung == before and (after, batch_size) in steps:
            rows[f"B = {batch_size}"] = {
                f"GPU, rung {before}": step.gpu_busy_us,
                "host (the rest)": step.idle_us,
                f"step, rung {before}": step.step_us,
                "the larger part": step_time(work_of(step), ahead=1),
                f"step, rung {after}": steps[after, batch_size].step_us,
            }
    return pd.DataFrame(rows).T.round().astype(int)


def hidden_table(record: DeviceTimeRecord, host_record: HostTimeRecord, rung: str) -> pd.DataFrame:
    """The host's work in a step beside the GPU's, a row for each batch size that both records have."""
    steps = record.steps
    rows = {}
    for host in host_record.times[rung]:
        if (step := steps.get((rung, host.batch_size))) is not None:
            rows[f"B = {host.batch_size}"] = {
                "host (us)": round(host.step_us),
                "GPU (us)": round(step.gpu_busy_us),
                "host, % of the GPU": round(100 * host.step_us / step.gpu_busy_us),
                "is hidden": host.step_us < step.gpu_busy_us,
                "GPU idle (%)": round(100 * step.idle_share, 1),
            }
    return pd.DataFrame(rows).T


def host_ratio(record: HostTimeRecord, rung: str, batch_size: int, over: int) -> float:
    """A rung's host time per step at one batch size, over its host time at the batch size `over`."""
    return record.time(rung, batch_size).step_us / record.time(rung, over).step_us


# --- requests that stop, leave and come back -------------------------------------------------------------


def until_end(token_ids: Sequence[int], eos_token_id: int) -> tuple[int, ...]:
    """The tokens up to the first one that ends the text, that one included; all of them if none does."""
    token_ids = tuple(token_ids)
    if eos_token_id not in token_ids:
        return token_ids
    return token_ids[: token_ids.index(eos_token_id) + 1]


def expected_tokens(
    model: LanguageModel, prompts: Sequence[str], num_tokens: int
) -> dict[str, list[tuple[int, ...]]]:
    """The tokens that each prompt's request has to get, by reference: up to `num_tokens`, but no more after
    the end of the text."""
    ids = [model.tokenizer.encode(prompt) for prompt in prompts]
    eos = model.tokenizer.eos_token_id
    references = {"dense": dense_tokens, "transformers": transformers_tokens}
    return {
        name: [until_end(tokens, eos) for tokens in made(model, ids, num_tokens)]
        for name, made in references.items()
    }


def run_with_cancellations(
    engine: InferenceEngine, prompts: Sequence[str], params: SamplingParams, cancel_in: dict[int, int]
) -> list[Completion]:
    """Serve the prompts, but cancel request `i` after call `cancel_in[i]` of `step`. Returns all completions,
    in the order of the prompts."""
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    done: dict[int, Completion] = {}
    calls = 0
    while engine.has_work:
        outputs = engine.step()
        calls += 1
        done |= {o.request_id: o.completion for o in outputs if o.completion is not None}
        for place, call in cancel_in.items():
            if call == calls and ids[place] not in done:
                done[ids[place]] = engine.cancel(ids[place])
    return [done[request_id] for request_id in ids]


def calls_until_tokens(engine: InferenceEngine, joins_after: int, num_tokens: int = 3) -> list[int]:
    """Let a request join others that decode. Returns, for each of its first tokens, in which call of `step`
    after the request it was handed out."""
    params = SamplingParams(max_new_tokens=24, stop_on_eos=False)
    for _ in range(2):
        engine.add_request([1, 2, 3], params)
    for _ in range(joins_after):
        engine.step()
    joiner = engine.add_request([4, 5], params)
    calls: list[int] = []
    for call in range(1, 24):
        calls += [call for output in engine.step() if output.request_id == joiner]
    return calls[:num_tokens]


# --- steady batches ---------------------------------------------------------------------------------------

# Folders of the functions that `bookkeeping_calls` counts.
BOOKKEEPING = ("labkit/engine/", "labkit/kvcache/")


def bookkeeping_calls(engine: InferenceEngine) -> int:
    """How many Python functions of the engine and its cache one step calls, without comprehensions."""
    calls = 0

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            calls += any(part in frame.f_code.co_filename for part in BOOKKEEPING)

    with profiled_by(on_event):
        engine.step()
    return calls


# --- what breaks: whose token is it? ----------------------------------------------------------------------


class AsksWhoRuns(ReadOneBehind):
    """A readback that is wrong on purpose: it gives a token to its request if that runs, in whatever session;
    for demonstration."""

    def still_running(self, step: StepInFlight, running: RunningRequests) -> list[int]:
        """The step's rows whose tokens are handed out: of requests that did not end or lose their blocks."""
        return [b for b, request in enumerate(step.requests) if request in running]


def preempt_newest(engine: InferenceEngine) -> None:
    """Preempt the newest running request, as the engine does when blocks run out."""
    engine.scheduler.preempt_newest()


def preempted_in_flight(
    engine: InferenceEngine, prompts: Sequence[str], num_tokens: int, after_calls: int = 4
) -> list[tuple[int, ...]]:
    """Serve the prompts; the newest request is preempted while a token of it is in flight. Returns each
    request's tokens."""
    params = SamplingParams(num_tokens, stop_on_eos=False)
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    outputs: list[StepOutput] = []
    for _ in range(after_calls):
        outputs += engine.step()
    preempt_newest(engine)
    while engine.has_work:
        outputs += engine.step()
    return [tuple(o.token_id for o in outputs if o.request_id == request_id) for request_id in ids]


# --- what breaks: two streams -----------------------------------------------------------------------------


class Access(NamedTuple):
    """A write or a read of one slot of a block on the GPU, and the request that it is for."""

    who: str
    verb: str  # "writes" or "reads"


def orders(streams: Sequence[Sequence[Access]]) -> Iterator[tuple[Access, ...]]:
    """Every order in which a GPU may run the accesses: within a stream as launched, between streams any."""
    if not any(streams):
        yield ()
    for i, stream in enumerate(streams):
        if stream:
            rest = [*streams[:i], stream[1:], *streams[i + 1 :]]
            yield from ((stream[0], *others) for others in orders(rest))


def what_is_read(streams: Sequence[Sequence[Access]]) -> Counter[str]:
    """In how many of the possible orders the one read of the slot finds each request's number."""
    found: Counter[str] = Counter()
    for order in orders(streams):
        slot = "nobody"
        for access in order:
            if access.verb == "reads":
                found[f"{access.who} reads {slot}'s number"] += 1
            else:
                slot = access.who
    return found


# --- what breaks: one buffer, and failures ----------------------------------------------------------------


class OneBuffer(PinnedTokens):
    """A `PinnedTokens` that is wrong on purpose: the copies of all steps share one buffer."""

    def __init__(self, size: int) -> None:
        super().__init__(size, torch.device("cpu"))
        self.buffers[1] = self.buffers[0]


def two_steps_in_flight(pinned_tokens: PinnedTokens) -> list[list[int]]:
    """What is read when the copies of two steps are started before either is read."""
    copies = [pinned_tokens.start_copy(torch.tensor(token_ids)) for token_ids in ([11, 12], [21, 22])]
    return [copy.read() for copy in copies]


def run_with_failure(
    engine: InferenceEngine, prompts: Sequence[str], params: SamplingParams, what: str, after_calls: int = 3
) -> tuple[dict[str, object], list[tuple[int, ...]]]:
    """Serve the prompts while one call fails: the launch of the following step, or the read of the one in
    flight.

    what: "launch" or "read". Returns the engine's state before and after the failure, and the tokens of each
    request.
    """
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    outputs = [output for _ in range(after_calls) for output in engine.step()]
    session, *_ = engine.scheduler.running.values()

    def state() -> tuple[int, int]:
        return session.num_tokens, int(engine.readback.is_ahead)

    place = {"launch": (engine.decode_step, "device_step"), "read": (TokenCopy, "read")}[what]
    (counted_before, flying_before) = state()
    with suppress(PlantedError), planted_failure(*place):
        outputs += engine.step()
    engine.check_integrity()
    (counted_after, flying_after) = state()
    launches, num_outputs = [], []
    for _ in range(2):
        with record_flights(engine) as watched:
            made = engine.step()
        outputs += made
        launches.append(len(watched.flights))
        num_outputs.append(len(made))
    while engine.has_work:
        outputs += engine.step()
    row = {
        "steps in flight": f"{flying_before} -> {flying_after}",
        "tokens counted": f"{counted_before} -> {counted_after}",
        "the next two calls launch": launches,
        "and hand out": num_outputs,
    }
    return row, [tuple(o.token_id for o in outputs if o.request_id == request_id) for request_id in ids]


# --- the recorded runs ------------------------------------------------------------------------------------


def first_token_table(records: Mapping[str, RunsRecord], before: str, after: str) -> pd.DataFrame:
    """The median time to the first token, a row per record: milliseconds on both rungs, and how many times
    faster."""
    rows = {}
    for label, record in records.items():
        sides = [[median(run.latency.ttft) for run in record.runs_of(rung)] for rung in (before, after)]
        rows[label] = {
            f"TTFT p50, rung {before} (ms)": round(1e3 * median(sides[0]), 2),
            f"rung {after} (ms)": round(1e3 * median(sides[1]), 2),
            "ratio": f"×{speedup(*sides):.3f}",
            "interval": str(speedup_interval(*sides)),
        }
    return pd.DataFrame(rows).T


def streaming_table(records: Mapping[str, RunsRecord]) -> pd.DataFrame:
    """Figures of recorded runs of the streaming command, a row per record, by name: medians over its runs."""
    rows = {}
    for name, record in records.items():
        gaps = [np.percentile(run.gaps_us, (50, 99)) / 1e3 for run in record.runs]
        rows[name] = {
            "tokens/s": f"{median(run.throughput for run in record.runs):,.0f}",
            "ITL p50 (ms)": round(median(p50 for p50, _ in gaps), 2),
            "ITL p99 (ms)": round(median(p99 for _, p99 in gaps), 2),
            "p99 / p50": round(median(p99 / p50 for p50, p99 in gaps), 2),
            "runs": len(gaps),
        }
    return pd.DataFrame(rows).T


def slow_gaps(record: RunsRecord) -> pd.DataFrame:
    """Where the streams of recorded runs paused for more than twice the median gap of their run, a row per
    run and token: how many streams, before which token, and for how long. All requests of a run must have
    made equally many tokens."""
    rows = []
    for number, run in enumerate(record.runs, start=1):
        streams = np.reshape(run.gaps_us, (len(run.new_tokens), -1))  # [stream, gap]
        slow = streams > 2 * np.median(streams)
        for place in slow.any(axis=0).nonzero()[0]:
            pauses = streams[slow[:, place], place]
            rows.append(
                {
                    "run": number,
                    "before token": f"{place + 2} of {streams.shape[1] + 1}",
                    "streams": len(pauses),
                    "pause, median (ms)": round(float(np.median(pauses)) / 1e3, 2),
                    "median gap (ms)": round(float(np.median(streams)) / 1e3, 2),
                }
            )
    return pd.DataFrame(rows).set_index("run")


def card_differences(
    record: CostCardRecord, before: str, after: str
) -> tuple[int, dict[str, list[tuple[int, int]]]]:
    """How many recorded cost cards both rungs have, and for each count that differs, by name, the pairs
    (before, after)."""
    cards = {(s.rung, s.key.model, s.key.prompt_lens): s.card.counts for s in record.samples}
    num_pairs, different = 0, {}
    for (rung, *where), counts in cards.items():
        other = cards.get((after, *where))
        if rung != before or other is None:
            continue
        num_pairs += 1
        for name, count in counts.items():
            if count != other[name]:
                different.setdefault(name, []).append((count, other[name]))
    return num_pairs, different


# --- exercises --------------------------------------------------------------------------------------------


def deliver(events: Sequence[tuple], eos: int) -> dict[str, list[int]]:
    """The tokens that each request gets, by name. events: of an engine, in order; eos: the token id that ends
    a text."""
    sessions: dict[str, int | None] = {}
    launched: list[list[tuple[str, int | None]]] = []
    reached: dict[str, list[int]] = {}
    for what, *rest in events:
        if what == "joins":
            name, sessions[name] = rest[0], rest[1]
            reached.setdefault(name, [])
        elif what == "leaves":
            sessions[rest[0]] = None
        elif what == "launch":
            launched.append([(name, sessions[name]) for name in rest[0]])
        else:
            for (name, session), token_id in zip(launched.pop(0), rest[0], strict=True):
                if sessions[name] != session or session is None:
                    continue
                reached[name].append(token_id)
                if token_id == eos:
                    sessions[name] = None
    return reached


def draw_events(rng: Random) -> dict[str, object]:
    """Draw arguments of `deliver`: the events of an engine that admits, launches, reads up to three steps
    behind, cancels and preempts."""
    eos = rng.choice([0, 9])
    sessions = rng.sample(range(1, 100), 40)  # in no order: they are names, too
    events, running, preempted, launched = [], {}, [], []
    names = list("ABCDE"[: rng.randint(1, 5)])
    for _ in range(rng.randint(8, 48)):
        what = rng.choice(["joins", "joins", "leaves", "launch", "launch", "launch", "read", "read"])
        if what == "joins" and (names or preempted):
            name = (preempted or names).pop(0)
            running[name] = sessions.pop()
            events.append(("joins", name, running[name]))
        elif what == "leaves" and running:
            name = rng.choice(list(running))
            del running[name]
            preempted += [name] if rng.random() < 0.7 else []
            events.append(("leaves", name))
        elif what == "launch" and running and len(launched) < 3:
            flight = rng.sample(list(running), rng.randint(1, len(running)))
            launched.append([(name, running[name]) for name in flight])
            events.append(("launch", flight))
        elif what == "read" and launched:
            flight = launched.pop(0)
            tokens = [eos if rng.random() < 0.2 else rng.randrange(20) for _ in flight]
            events.append(("read", tokens))
            for (name, session), token in zip(flight, tokens, strict=True):
                if token == eos and running.get(name) == session:
                    del running[name]  # its text has ended
    return {"events": events, "eos": eos}


DELIVER = Exercise(
    "deliver",
    (
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["A", "B"]),
                    ("read", [31, 32]),
                    ("launch", ["B"]),
                    ("read", [33]),
                ],
                "eos": 0,
            },
            {"A": [31], "B": [32, 33]},
            "A read brings one token for each request of the launch, in the launch's order.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["A", "B"]),
                    ("launch", ["B"]),
                    ("read", [31, 32]),
                    ("read", [33]),
                ],
                "eos": 0,
            },
            {"A": [31], "B": [32, 33]},
            "Two steps are on their way, and a read is of the oldest that has not been read.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["A", "B"]),
                    ("launch", ["A", "B"]),
                    ("read", [0, 32]),
                    ("launch", ["B"]),
                    ("read", [33, 34]),
                    ("read", [35]),
                ],
                "eos": 0,
            },
            {"A": [0], "B": [32, 34, 35]},
            "The token that ends a text is handed out. The one behind it was on its way, and nobody gets it.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["A", "B"]),
                    ("leaves", "A"),
                    ("launch", ["B"]),
                    ("read", [31, 32]),
                    ("read", [33]),
                ],
                "eos": 0,
            },
            {"A": [], "B": [32, 33]},
            "A was cancelled while its token was on its way: it has no session any more.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("launch", ["A"]),
                    ("leaves", "A"),
                    ("joins", "A", 2),
                    ("launch", ["A"]),
                    ("read", [31]),
                    ("read", [32]),
                ],
                "eos": 0,
            },
            {"A": [32]},
            "A was preempted and has come back in another session, whose prefill made that token once more. "
            "What the old session launched is not for the new one.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("launch", ["A"]),
                    ("joins", "B", 2),
                    ("launch", ["B", "A"]),
                    ("read", [31]),
                    ("read", [41, 32]),
                ],
                "eos": 0,
            },
            {"A": [31, 32], "B": [41]},
            "B joined after the first launch, so its first token comes with the second.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("launch", ["A"]),
                    ("read", [31]),
                    ("leaves", "A"),
                    ("joins", "A", 2),
                    ("launch", ["A"]),
                    ("read", [32]),
                ],
                "eos": 0,
            },
            {"A": [31, 32]},
            "What was handed out stays handed out: a request that comes back goes on behind it.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["B", "A"]),
                    ("launch", ["B", "A"]),
                    ("read", [0, 50256]),
                    ("read", [7, 8]),
                ],
                "eos": 50256,
            },
            {"A": [50256], "B": [0, 7]},
            "Which token ends a text is an argument: here it is 50256, and 0 is a token as any other.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("launch", ["A"]),
                    ("leaves", "A"),
                    ("joins", "A", 2),
                    ("launch", ["A"]),
                    ("read", [0]),
                    ("read", [32]),
                ],
                "eos": 0,
            },
            {"A": [32]},
            "An end that nobody gets ends nobody: it was for the session that A no longer has.",
        ),
        Case(
            {"events": [("joins", "A", 1), ("leaves", "A"), ("joins", "B", 2), ("launch", ["B"])], "eos": 0},
            {"A": [], "B": []},
            "Whoever joined is in the answer, also without a token; and a launch that is never read brings "
            "none.",
        ),
    ),
    deliver,
    draw_events,
    "A token is handed out if its request is still in the session that it had at the launch, and has not "
    "ended in it.",
)


class Running(NamedTuple):
    """A running request: how many tokens it was handed, how many it may have at most, and its session."""

    name: str
    made: int
    limit: int
    session: int


def going(running: Sequence[Running], in_flight: set[int]) -> list[str]:
    """The names of the requests that are launched again, before the step in flight is read. in_flight: the
    sessions in that step."""
    return [
        request.name for request in running if request.made + (request.session in in_flight) < request.limit
    ]


def draw_running(rng: Random) -> dict[str, object]:
    """Draw arguments of `going`: requests near their limits and far from them, and sessions in flight, some
    of requests that left."""
    sessions = rng.sample(range(1, 30), 8)
    running = []
    for name in rng.sample("ABCDEF", rng.randint(0, 6)):
        limit = rng.randint(1, 9)
        made = rng.choice([limit - 1, max(limit - 2, 0), rng.randrange(limit)])
        running.append(Running(name, made, limit, sessions.pop()))
    known = [request.session for request in running] + sessions
    return {"running": running, "in_flight": set(rng.sample(known, rng.randint(0, len(known))))}


A, B, C = Running("A", 3, 8, 1), Running("B", 7, 8, 2), Running("C", 1, 8, 3)

GOING = Exercise(
    "going",
    (
        Case(
            {"running": [A, C], "in_flight": {1, 3}},
            ["A", "C"],
            "Both have room for the token on its way and for another one.",
        ),
        Case(
            {"running": [A, B, C], "in_flight": {1, 2, 3}},
            ["A", "C"],
            "B's last token is on its way. That is known in advance: nothing must be launched behind it.",
        ),
        Case(
            {"running": [B, C], "in_flight": {1, 3}},
            ["B", "C"],
            "B has joined since and is not in the step in flight: its last token is still to be launched.",
        ),
        Case(
            {"running": [B._replace(session=9)], "in_flight": {2}},
            ["B"],
            "B was preempted and came back in session 9. The token on its way is of session 2, and not B's.",
        ),
        Case(
            {"running": [C, A], "in_flight": {1, 3}},
            ["C", "A"],
            "The order is that of the running requests: it is the order of the batch.",
        ),
        Case(
            {"running": [B, Running("D", 0, 1, 4)], "in_flight": {2, 4}},
            [],
            "All have their last token on its way, so nobody is launched.",
        ),
    ),
    going,
    draw_running,
    "A request goes on if it has room for one token more, after what it has and what is on its way to its "
    "session.",
)
