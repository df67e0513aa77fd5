"""flood: sends far more requests than the pool has blocks for, and says what became of them and at what cost.

The requests have random shapes. Some begin alike, some are cancelled, some can never run, and some have
readers that leave. An assertion fails if a request ends otherwise than it was asked to, if a block is lost,
or if a request waits longer than the policy allows.
"""

import argparse
import random
from itertools import product

import torch
from tqdm import tqdm

from labkit.bench.commands.arguments import (
    add_device_arguments,
    add_rungs_argument,
    length,
    natural,
    positive,
    settings_of,
)
from labkit.bench.commands.interruption import until_interrupted
from labkit.bench.flood import (
    AT_ONCE,
    CHECK_EVERY,
    LONGEST_PROMPT,
    MOST_NEW_TOKENS,
    PACK_WINDOW,
    ROOM_FOR,
    SMALL,
    Flood,
    draw_wishes,
    flood_engine,
    model_on,
)
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record, write_record
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.results.flood import FloodRun

POLICIES = ("fifo", "pack")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_device_arguments(parser)
    add_rungs_argument(parser)
    add = parser.add_argument
    add(
        "--model",
        default=SMALL,
        help="this model runs: a directory, a hub id, or random weights (default: %(default)s)",
    )
    add("--policy", choices=POLICIES, help="this policy admits requests (default: both, one after the other)")
    add(
        "--num-requests",
        type=positive,
        default=10_000,
        help="each flood has this many requests (default: %(default)s)",
    )
    add(
        "--at-once",
        type=positive,
        default=AT_ONCE,
        help="this many clients ask at once (default: %(default)s)",
    )
    add(
        "--longest-prompt",
        type=length,
        default=LONGEST_PROMPT,
        help="prompts have at most this many tokens (default: %(default)s)",
    )
    add(
        "--max-new-tokens",
        type=length,
        default=MOST_NEW_TOKENS,
        help="a request makes at most this many tokens (default: %(default)s)",
    )
    checked = "one request in this many is compared with what it gets alone (default: %(default)s)"
    add("--check-every", type=positive, default=CHECK_EVERY, metavar="N", help=checked)
    add(
        "--seed", type=natural, default=0, help="all requests are drawn with this seed (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    """Flood an engine of each rung under each policy; print what became of it and write a record."""
    device = pick_device(args.device)
    policies = POLICIES if args.policy is None else (args.policy,)
    samples: list[FloodRun] = []
    with until_interrupted(args, samples):
        for rung, policy in product(args.rungs, policies):
            samples.append(flooded(rung, policy, args, device))
    if args.json:
        settings = {**settings_of(args), "room_for": ROOM_FOR, "pack_window": PACK_WINDOW}
        write_record(make_record("flood", device, measure_bandwidth(device), settings, samples), args.json)


def flooded(rung: str, policy: str, args: argparse.Namespace, device: torch.device) -> FloodRun:
    """One flood, and a few lines about it."""
    dice = random.Random(args.seed)
    max_positions = model_on(args.model, str(device)).config.max_positions
    wishes = draw_wishes(dice, args.num_requests, args.longest_prompt, args.max_new_tokens, max_positions)
    engine = flood_engine(LADDER[rung].options, wishes, policy, str(device), model=args.model)
    with tqdm(total=len(wishes), desc=f"rung {rung}, {policy}", unit=" requests", disable=None) as bar:
        made = Flood(engine, wishes, args.at_once, args.check_every).run(
            rung, lambda ended: bar.update(ended - bar.n)
        )
    ended = ", ".join(f"{count:,} {how}" for how, count in sorted(made.ended.items()))
    print(f"rung {rung}, {policy}: {made.num_ended:,} requests: {ended}; {made.seconds:.0f} s")
    print(
        f"  {made.tokens_per_second:,.0f} tokens/s, {made.preemptions:,} preemptions, {made.peak_blocks:,} "
        f"of {made.num_blocks:,} blocks, {made.equal} of {made.checked} as alone"
    )
    print(
        f"  longest wait {made.longest_wait:,} steps, {made.nearest_to_bound:.1%} of its bound; passed over "
        f"{made.most_passed_over} times at most; memory x{made.memory_growth:.3f} since the 1,000th"
    )
    return made
