"""Random schedules of requests on a small engine, with failures in the middle of them."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from fault_points import FaultPoint, planted_nan

from labkit.engine import CacheConfig, SamplingParams, SchedulerConfig
from labkit.errors import OutOfBlocksError
from labkit.watch.replaced import PlantedError, planted_failure

# Many begin with another one, so that the prefix cache has whole and partial hits.
PROMPTS = ((1,), (1, 2, 3), (1, 2, 3, 4, 5, 6), (1, 2, 3, 9), (7, 8), tuple(range(20, 30)))
PARAMS = (
    *(SamplingParams(1), SamplingParams(3), SamplingParams(7)),
    SamplingParams(5, temperature=1.0, top_k=40, top_p=0.95, seed=3, logprobs=2),
)
LONGEST = max(map(len, PROMPTS)) + max(p.max_new_tokens for p in PARAMS) - 1  # tokens in the cache
MOVES = {"add": 4, "step": 8, "cancel": 1, "open": 1, "read": 2, "leave": 1, "throw": 1}  # weights

FAMILIES = "small", "small-llama"  # names of SMALL_MODELS

ERRORS: tuple[Callable[[str], BaseException], ...] = (
    *(PlantedError, OutOfBlocksError, torch.OutOfMemoryError),
    KeyboardInterrupt,  # no Exception
)
# Calls that give the device work, whose error may come when the work is done.
DEVICE_WORK = {
    *("prefill", "decode_one_token", "device_step", "layer", "few", "attention"),
    *("append_prompt", "append_token", "append_token_batch", "kv_append", "write", "write_batch"),
    *("build", "fill", "send", "send_mapping", "send_states", "send_rows", "deliver"),
    *("sample", "draw_and_advance", "advance", "start_copy", "read"),
}
# Calls that give hidden states, a row for each request (`few`: of all layers).
ATTENTION = {"attention", "few"}


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
    family: of the engine's model, one of FAMILIES.
    """

    cache: CacheConfig
    scheduler: SchedulerConfig
    moves: tuple[tuple[str, int], ...]
    faults: tuple[Fault, ...]
    family: str = "small"


def draw_schedule(dice: random.Random, points: Sequence[str], family: str = "small") -> Schedule:
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
        prefill_chunk_tokens=dice.choice([1, 3, 7, 20]),
        admission_policy=dice.choice(["fifo", "pack"]),
        pack_window=dice.randint(1, 3),
        decode_first=dice.random() < 0.5,
    )
    names, weights = zip(*MOVES.items(), strict=True)
    moves = [("add", dice.randrange(100)) for _ in range(2)]
    moves += [(dice.choices(names, weights)[0], dice.randrange(100)) for _ in range(dice.randint(4, 16))]
    if not cache.prefix_cache:
        points = [point for point in points if "PrefixCache." not in point]
    faults = [draw_fault(dice, points, len(moves)) for _ in range(dice.choice([1, 1, 2]))] if points else []
    return Schedule(cache, scheduler, tuple(moves), tuple(faults), family)


def draw_fault(dice: random.Random, points: Sequence[str], num_moves: int) -> Fault:
    """A fault at one of these points, before one of so many moves."""
    point = dice.choice(points)
    name = point.split(".")[1]
    harms = ["in its place", "from there on"]
    harms += ["behind its work"] * (name in DEVICE_WORK) + ["no numbers"] * 3 * (name in ATTENTION)
    return Fault(
        point,
        move=dice.randrange(num_moves),
        at_call=dice.choice([0, 0, 1, 2, 3, 5, 8]),
        harm=dice.choice(harms),
        error=dice.choice(ERRORS),
        row=dice.randrange(4),
    )


def which_request(number: int) -> tuple[tuple[int, ...], SamplingParams]:
    """A prompt and parameters by number."""
    return PROMPTS[number % len(PROMPTS)], PARAMS[number // len(PROMPTS) % len(PARAMS)]
