"""A fleet of replicas, simulated: what many of them ask of the router that stands before them.

The router is `labkit.serve.affinity`'s own; only replicas, ingresses and time are simulated. A replica
decodes its running requests together, and a step takes as long as one of so many requests took in a record.
"""

import heapq
import math
import random
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from statistics import median

import numpy as np

from labkit.bench.flags import SEED, RecordFlags, flag
from labkit.bench.http import said
from labkit.bench.loads import QUESTION, SYSTEM_PROMPT, lognormal
from labkit.ladder import FINISHED
from labkit.results import load
from labkit.results.served import FleetRun
from labkit.serve.affinity import POLICIES, SLACK

BATCH = 64  # requests that a replica decodes together
PREFIXES = 4  # different beginnings of prompts, for each replica
KEPT = 8  # prompts' beginnings that a replica's prefix cache has room for
MOST_ONGOING = 256  # that it takes at once, as the application has it by default
BOUND = 1.25  # times the mean load, up to which a group takes requests of its own beginnings
MEDIAN_ANSWER, LONGEST_ANSWER = 128, 512  # tokens

# What the command simulates.
SHARE = 0.7  # of what the fleet can serve
# Replicas, policy, ingresses, whether these have groups of their own, replicas that are lost, requests.
STEADY = (
    (8, "prefix", 1, False, 0, 1_600),
    (8, "round-robin", 1, False, 0, 1_600),
    (8, "prefix", 4, False, 0, 1_600),
    (8, "prefix", 1, False, 1, 1_600),
    (64, "prefix", 1, False, 0, 6_400),
    (64, "round-robin", 1, False, 0, 6_400),
    (64, "prefix", 8, False, 0, 6_400),
    (64, "prefix", 1, False, 8, 6_400),
    (64, "prefix", 8, True, 0, 6_400),
    (1000, "prefix", 1, False, 0, 12_000),
    (1000, "prefix", 125, False, 0, 12_000),
    (1000, "prefix", 125, True, 0, 12_000),
    (1000, "prefix", 125, True, 8, 12_000),
)
GROWING = 4  # replicas
COLD_STARTS = (10.0, 60.0)  # seconds
AFTER = 70.0  # seconds for which requests come, beside a cold start


@dataclass(frozen=True)
class Service:
    """Seconds that a replica takes, from records: a decode step by the requests in it, and a prompt's
    token."""

    steps: dict[int, float]
    prompt_token: float

    @classmethod
    def recorded(cls, rung: str) -> "Service":
        """GPT-2 124M on an H100: a step of 1 and of 64 requests, and prompts of the load shared-prefix as
        they are without a prefix cache, on rung 13."""
        alone, together = (
            load(name).only(rung=rung) for name in ("ladder_single_from_10_h100", "ladder_036_from_10_h100")
        )
        prompts = load("ladder_shared_prefix_h100").only(rung="13")
        steps = {
            num: median(each.decode_seconds / each.decode_steps for each in runs)
            for num, runs in ((1, alone), (BATCH, together))
        }
        return cls(steps, median(each.prefill_seconds / sum(each.prompt_lens) for each in prompts))

    def step(self, running: int) -> float:
        """Seconds of a decode step of so many requests."""
        return float(np.interp(running, list(self.steps), list(self.steps.values())))


@dataclass
class Asked:
    """A request: when it comes, which beginning it has and what it asks for."""

    at: float
    prefix: int
    text: str
    answer: int
    ingress: int = 0
    ttft: float = 0.0
    has_hit: bool = False


@dataclass
class Replica:
    """Requests that share steps."""

    service: Service
    now: float = 0.0
    steps: float = 0.0  # decode steps so far, parts of one included
    running: list[tuple[float, int, Asked]] = field(default_factory=list)  # by the step that ends them
    waiting: deque[Asked] = field(default_factory=deque)
    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    version: int = 0  # of `next_end`: an event of an older one is stale

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)

    def advance(self, to: float) -> None:
        """Decode until then."""
        if to > self.now:
            if self.running:
                self.steps += (to - self.now) / self.service.step(len(self.running))
            self.now = to

    def admit(self) -> None:
        """Compute the prompts of requests that have a place; decoding waits meanwhile."""
        while self.waiting and len(self.running) < BATCH:
            asked = self.waiting.popleft()
            asked.has_hit = asked.prefix in self.cached
            self.cached[asked.prefix] = None
            self.cached.move_to_end(asked.prefix)
            if len(self.cached) > KEPT:
                self.cached.popitem(last=False)
            tokens = QUESTION + (0 if asked.has_hit else SYSTEM_PROMPT)
            self.now += tokens * self.service.prompt_token
            asked.ttft = self.now - asked.at
            heapq.heappush(self.running, (self.steps + asked.answer, id(asked), asked))

    def next_end(self) -> float:
        """When the next request ends, if no other comes."""
        self.version += 1
        return self.now + (self.running[0][0] - self.steps) * self.service.step(len(self.running))


class Ingress:
    """A policy, and the load of each replica as this ingress knows it: what it has sent there itself. num: so
    many ingresses have the same replicas."""

    def __init__(self, policy: str, num: int) -> None:
        self.policy = POLICIES[policy](num)
        self.loads: dict[str, int] = {}
        self.seconds: list[float] = []  # that the policy took, measured


def arrivals(rate: float, num: int, prefixes: int, seed: int) -> Iterator[Asked]:
    """A Poisson process of requests whose beginnings are as popular as Zipf says."""
    numbers, now = random.Random(seed), 0.0
    weights = list(accumulate(1 / rank for rank in range(1, prefixes + 1)))
    for index in range(num):
        now += numbers.expovariate(rate)
        (prefix,) = numbers.choices(range(prefixes), cum_weights=weights)
        text = f"{prefix:05}," * SYSTEM_PROMPT + f"{index:05}," * QUESTION
        yield Asked(now, prefix, text, lognormal(numbers, MEDIAN_ANSWER, LONGEST_ANSWER))


@cache
def mean_answer() -> float:
    numbers = random.Random(0)
    return sum(lognormal(numbers, MEDIAN_ANSWER, LONGEST_ANSWER) for _ in range(10_000)) / 10_000


@dataclass(frozen=True)
class Fleet:
    """So many replicas behind ingresses that route by a policy.

    in_groups: each ingress has replicas of its own, and requests that begin alike come to the same ingress;
    without, each ingress has all replicas, and requests come to any.
    """

    service: Service
    replicas: int
    policy: str = "prefix"
    ingresses: int = 1
    in_groups: bool = False

    def rate(self, share: float) -> float:
        """Requests per second that are this share of what all replicas can serve, with full batches and the
        beginnings of all prompts cached."""
        answer, service = mean_answer(), self.service
        prompts = BATCH * QUESTION * service.prompt_token / answer  # beside a decode step
        return share * self.replicas * (BATCH / (answer * (service.step(BATCH) + prompts)))

    def steady(self, share: float, num: int, seed: int, lost: int = 0) -> FleetRun:
        """`num` requests at a rate. The second half of them is counted, when the caches have filled; as it
        begins, so many replicas are lost, and their requests are sent to others."""
        going = Simulation(self, self.replicas, seed)
        for number, asked in enumerate(arrivals(self.rate(share), num, PREFIXES * self.replicas, seed)):
            if 2 * number == num:
                going.lose(lost, asked.at)
            going.arrive(asked)
        return going.told(f"{lost} lost" if lost else "", self.rate(share), num // 2)

    def growing(self, share: float, seconds: float, seed: int, cold_start: float) -> FleetRun:
        """Requests for all replicas come for so many seconds, when there is one. Others join it as Serve
        decides, each so many seconds later."""
        rate = self.rate(share)
        going, scaler = Simulation(self, 1, seed), Autoscaler(self.replicas)
        starts: list[float] = []
        for asked in arrivals(rate, round(rate * seconds), PREFIXES * self.replicas, seed):
            for _ in range(scaler.wanted(asked.at, going.unfinished, len(going.live) + len(starts))):
                starts.append(asked.at + cold_start)
            while starts and starts[0] <= asked.at:
                starts.pop(0)
                going.join(asked.at)
            going.arrive(asked)
        return going.told(f"from 1, cold start {cold_start:g} s", rate, 0)


class Autoscaler:
    """As Serve decides: more replicas are started when the unfinished requests, the mean of 30 s, have asked
    for them for 30 s. The 30 s are Serve's defaults, the requests of a replica labkit's."""

    TARGET, PERIOD, DELAY = 32, 30.0, 30.0  # requests of a replica; seconds

    def __init__(self, most: int) -> None:
        self.most, self.since, self.next = most, float("inf"), 0.0
        self.seen: deque[int] = deque(maxlen=round(self.PERIOD))  # one a second

    def wanted(self, now: float, unfinished: int, replicas: int) -> int:
        """How many replicas are to be started now, when so many run or start."""
        if now < self.next:
            return 0
        self.next = now + 1.0
        self.seen.append(unfinished)
        desired = min(self.most, math.ceil(sum(self.seen) / len(self.seen) / self.TARGET))
        self.since = min(self.since, now) if desired > replicas else float("inf")
        return desired - replicas if now - self.since >= self.DELAY else 0


class Simulation:
    """A fleet at a moment: requests arrive one after another, and replicas are lost and join."""

    def __init__(self, fleet: Fleet, replicas: int, seed: int) -> None:
        self.fleet, self.numbers = fleet, random.Random(seed + 1)
        self.live: dict[str, Replica] = {}
        of_each = 1 if fleet.in_groups else fleet.ingresses
        self.ingresses = [Ingress(fleet.policy, of_each) for _ in range(fleet.ingresses)]
        self.ends: list[tuple[float, str, int]] = []  # when, which replica, of which version
        self.done, self.most, self.refused = list[Asked](), list[int](), list[float]()
        self.unfinished = self.joined = 0
        for _ in range(replicas):
            self.join(0.0)

    def join(self, now: float) -> None:
        """A replica more, with an empty cache."""
        name = str(self.joined)
        self.joined += 1
        self.live[name] = Replica(self.fleet.service, now)
        for ingress in self.ingresses_of(name):
            ingress.loads[name] = 0

    def ingresses_of(self, name: str) -> list[Ingress]:
        """Those that know a replica."""
        if self.fleet.in_groups:
            return [self.ingresses[int(name) % len(self.ingresses)]]
        return self.ingresses

    def lose(self, num: int, now: float) -> None:
        """So many replicas die, and their requests are sent again."""
        self.until(now)
        for name in list(self.live)[:num]:
            replica = self.live.pop(name)
            for ingress in self.ingresses_of(name):
                del ingress.loads[name]
            orphans = [*replica.waiting, *(asked for _, _, asked in replica.running)]
            self.unfinished -= len(orphans)
            for asked in orphans:
                self.send(asked, now)

    def arrive(self, asked: Asked) -> None:
        """A request comes; it is refused if every replica has as many as it takes at once."""
        self.until(asked.at)
        if self.unfinished >= MOST_ONGOING * len(self.live):
            self.refused.append(asked.at)
            return
        self.send(asked, asked.at)
        if len(self.done) % 16 == 0:
            self.most.append(max(replica.load for replica in self.live.values()))

    def send(self, asked: Asked, now: float) -> None:
        """Have its ingress choose a replica, and start it there or let it wait."""
        num = len(self.ingresses)
        asked.ingress = self.group_of(asked) if self.fleet.in_groups else self.numbers.randrange(num)
        ingress = self.ingresses[asked.ingress]
        started = time.perf_counter()
        name, *_ = ingress.policy.rank(asked.text, ingress.loads)
        ingress.seconds.append(time.perf_counter() - started)
        replica = self.live[name]
        replica.advance(now)
        replica.waiting.append(asked)
        self.unfinished += 1
        ingress.loads[name] += 1
        self.go_on(name)

    def group_of(self, asked: Asked) -> int:
        """The first group, in an order that the beginning alone decides, which has little more than the mean:
        consistent hashing with bounded loads (Mirrokni and others, 2018)."""
        num = len(self.ingresses)
        most = BOUND * self.unfinished / num + SLACK
        first = random.Random(asked.prefix).randrange(num)
        for index in (*range(first, num), *range(first)):
            loads = self.ingresses[index].loads
            if loads and sum(loads.values()) <= most:
                return index
        return first

    def go_on(self, name: str) -> None:
        """Admit what has a place, and note when the next request of a replica ends."""
        replica = self.live[name]
        replica.admit()
        if replica.running:
            heapq.heappush(self.ends, (replica.next_end(), name, replica.version))

    def until(self, moment: float) -> None:
        """End the requests that end before a moment."""
        while self.ends and self.ends[0][0] <= moment:
            at, name, version = heapq.heappop(self.ends)
            replica = self.live.get(name)
            if replica is None or version != replica.version:
                continue
            replica.advance(at)
            _, _, ended = heapq.heappop(replica.running)
            self.done.append(ended)
            self.unfinished -= 1
            loads = self.ingresses[ended.ingress].loads
            loads[name] -= 1
            self.go_on(name)

    def told(self, event: str, rate: float, uncounted: int) -> FleetRun:
        """The run, when all requests have ended, without the first ones."""
        self.until(float("inf"))
        counted = sorted(self.done, key=lambda asked: asked.at)[uncounted:]
        choices = [s for each in self.ingresses for s in each.seconds[len(each.seconds) // 2 :]]
        return FleetRun(
            replicas=self.fleet.replicas,
            policy=self.fleet.policy + (" in groups" if self.fleet.in_groups else ""),
            ingresses=self.fleet.ingresses,
            event=event,
            rate=rate,
            requests=len(self.done) + len(self.refused),
            refused=len(self.refused),
            last_refused=max(self.refused, default=0.0),
            tokens_per_second=rate * mean_answer(),
            hits=sum(asked.has_hit for asked in counted) / len(counted),
            ttft=tuple(float(t) for t in np.percentile([asked.ttft for asked in counted], (50, 99))),
            most_loaded=float(np.mean(self.most[len(self.most) // 2 :])),
            choice_seconds=median(choices),
        )


@dataclass
class SimulateFleets(RecordFlags):
    """Simulate up to 1,000 replicas, and say what the router before them does and costs.

    The service times are those of GPT-2 124M in the H100's records, and the router is the one that runs.
    Requests come at 70 % of what the fleet can serve. All figures but the time of a choice are the same for
    the same seed.
    """

    kind = "fleet"

    seed: int = flag(0, "requests are drawn with this seed", SEED)

    def run(self) -> None:
        service, samples = Service.recorded(FINISHED.number), list[FleetRun]()
        for replicas, policy, ingresses, in_groups, lost, num in STEADY:
            fleet = Fleet(service, replicas, policy, ingresses, in_groups)
            samples.append(fleet.steady(SHARE, num, self.seed, lost))
            said(f"{samples[-1].replicas} replicas, {samples[-1].policy}, ingresses: {ingresses}")
        for cold_start in COLD_STARTS:
            samples.append(Fleet(service, GROWING).growing(SHARE, cold_start + AFTER, self.seed, cold_start))
            said(samples[-1].event)
        record = self.record(samples, model="random:gpt2", share=SHARE)
        print(f"{record.steady_table().to_string()}\n\n{record.growth_table().to_string()}")
        self.write(record)
