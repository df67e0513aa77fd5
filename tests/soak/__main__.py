"""`python tests/soak faults` and `python tests/soak flood`: for minutes or hours what tests do in seconds.

`faults` runs random schedules in which calls fail; one that breaks a promise is printed with the flags that
run it again. `flood` sends engines far more requests than their pools have blocks for. `http` sends a running
`python -m labkit.serve` clients well and badly behaved.
"""

import argparse
import asyncio
import multiprocessing
import random
import shlex
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from faults import run_numbered, sample_of
from flood import PACK_WINDOW, ROOM_FOR, SMALL, Flood, draw_wishes, flood_engine, model_on
from http_flood import HttpFlood, blocks_lost, draw_questions, resident
from tqdm import tqdm

from labkit.bench.http import ServerCommand
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record, write_record
from labkit.engine import CacheConfig, InferenceEngine
from labkit.engine.device import current_device, pick_device
from labkit.ladder import FINISHED, LADDER
from labkit.model import load_model
from labkit.serve.engine_process import EngineSettings
from labkit.show.reliability import growth
from labkit.threads import use_one_thread

EXACT = [number for number, rung in LADDER.items() if rung.is_exact]

POLICIES = ["fifo", "pack"]


def main() -> None:
    """Run the command of the command line, print what became of it, and write a record if one is wanted."""
    args = make_parser().parse_args()
    device = pick_device(args.device)
    if device.type == "cpu":
        use_one_thread()
    with current_device(device):
        samples = args.run(args, device)
        if args.json and samples:
            settings = {k: v for k, v in vars(args).items() if k not in ("run", "kind", "json")}
            made = make_record(args.kind, device, measure_bandwidth(device), settings, samples)
            command = shlex.join(["python", "tests/soak", *sys.argv[1:]])
            write_record(replace(made, command=command), args.json)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python tests/soak", description=__doc__)
    commands = parser.add_subparsers(dest="kind", required=True)
    with_defaults = {"formatter_class": argparse.ArgumentDefaultsHelpFormatter}
    faults = commands.add_parser("faults", **with_defaults)
    faults.set_defaults(run=run_faults, model=SMALL)
    faults.add_argument("--schedules", type=int, default=100, help="of each rung")
    faults.add_argument("--processes", type=int, default=1, help="rungs that run at a time")
    faults.add_argument("--only", type=int, help="the number of the one schedule that runs")
    flood = commands.add_parser("flood", **with_defaults)
    flood.set_defaults(run=run_flood, room_for=ROOM_FOR, pack_window=PACK_WINDOW)
    flood.add_argument("--model", default=SMALL, help="a directory, a hub id, or random weights")
    flood.add_argument("--policy", choices=POLICIES, help="of admission; None: one after the other")
    flood.add_argument("--num-requests", type=int, default=10_000, help="of each flood")
    flood.add_argument("--at-once", type=int, default=400, help="clients")
    flood.add_argument("--longest-prompt", type=int, default=900, help="in tokens")
    flood.add_argument("--max-new-tokens", type=int, default=300, help="of a request")
    flood.add_argument("--check-every", type=int, default=20, help="one in so many is compared alone")
    http = commands.add_parser("http", **with_defaults)
    http.set_defaults(run=run_http, kind="http_flood")
    http.add_argument("--model", default="data/tiny-gpt2", help="a directory, a hub id, or random weights")
    http.add_argument("--rung", choices=EXACT, default=FINISHED.number, metavar="RUNG")
    http.add_argument("--open", type=int, default=1000, help="streams that are asked for at once, before")
    http.add_argument("--num-requests", type=int, default=10_000, help="of the flood")
    http.add_argument("--at-once", type=int, default=1100, help="clients; the server takes 1,024")
    for command, rungs in (faults, list(LADDER)), (flood, EXACT):
        command.add_argument("--rungs", nargs="+", choices=rungs, default=rungs, metavar="RUNG")
    for command in (faults, flood, http):
        command.add_argument("--device", help="cpu, cuda, cuda:1, ...; None: the best there is")
        command.add_argument("--seed", type=int, default=0, help="everything is drawn from it")
        command.add_argument("--json", type=Path, metavar="FILE", help="where a record goes")
    return parser


def run_faults(args: argparse.Namespace, device: torch.device) -> list[dict]:
    """Run the schedules of each rung, or of each the one that is asked for."""
    if args.only is not None:
        for rung in args.rungs:
            print(run_numbered(rung, args.seed, args.only, str(device)))
        return []
    of_rung = partial(sample_of, num_schedules=args.schedules, seed=args.seed, device=str(device))
    if args.processes == 1:
        samples = list(map(of_rung, args.rungs))
    else:
        fresh = multiprocessing.get_context("spawn")  # a process that was forked has no CUDA
        with fresh.Pool(args.processes, use_one_thread) as pool:
            samples = pool.map(of_rung, args.rungs, chunksize=1)
    for s in samples:
        print(
            f"rung {s['rung']}: {s['schedules']:,} schedules, {sum(s['fired'].values()):,} faults at "
            f"{s['num_points']} points, {s['failed_steps']:,} failed steps, {len(s['fell'])} failed"
        )
        print(*s["fell"], sep="\n", end="\n" * bool(s["fell"]))
    return samples


def run_flood(args: argparse.Namespace, device: torch.device) -> list[dict]:
    """Flood an engine of each rung under each policy."""
    policies = [args.policy] if args.policy else POLICIES
    return [flooded(rung, policy, args, device) for rung, policy in product(args.rungs, policies)]


def flooded(rung: str, policy: str, args: argparse.Namespace, device: torch.device) -> dict:
    """One flood, and a few lines about it."""
    most = model_on(args.model, str(device)).config.max_positions
    dice = random.Random(args.seed)
    wishes = draw_wishes(dice, args.num_requests, args.longest_prompt, args.max_new_tokens, most)
    engine = flood_engine(LADDER[rung].options, wishes, policy, str(device), model=args.model)
    with tqdm(total=len(wishes), desc=f"rung {rung}, {policy}", unit=" requests", disable=None) as bar:
        flood = Flood(engine, wishes, args.at_once, args.check_every)
        made = flood.run(rung, lambda ended: bar.update(ended - bar.n))
    ended = ", ".join(f"{count:,} {how}" for how, count in sorted(made["ended"].items()))
    print(f"rung {rung}, {policy}: {len(wishes):,} requests: {ended}; {made['seconds']:.0f} s")
    print(
        f"  {made['preemptions']:,} preemptions, {made['peak_blocks']:,} of {made['num_blocks']:,} blocks, "
        f"{made['equal']} of {made['checked']} as alone; longest wait {made['longest_wait']:,} steps, "
        f"{made['nearest_to_bound']:.1%} of its bound; passed over {made['most_passed_over']} times at most; "
        f"memory x{growth(made['memory']):.3f} since the 1,000th"
    )
    return made


def run_http(args: argparse.Namespace, device: torch.device) -> list[dict]:
    """Flood the command, and say what became of the requests."""
    with ServerCommand(EngineSettings(args.model, args.rung, str(device))) as server:
        alone = InferenceEngine(load_model(args.model), device=device, cache=CacheConfig(prefix_cache=False))
        questions = draw_questions(alone, longest=40, most_new_tokens=24, seed=args.seed)
        url = f"http://127.0.0.1:{server.port()}"
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        pids = server.process.pid, *map(int, children.read_text().split() if children.exists() else ())
        flood = HttpFlood(url, questions, lambda: resident(*pids), args.seed)
        started = time.perf_counter()
        asyncio.run(flood.all_at_once(args.open))
        print(f"{flood.most_open:,} streams at once: {time.perf_counter() - started:.0f} s", flush=True)
        with tqdm(total=args.num_requests, unit=" requests", disable=None) as bar:
            asyncio.run(flood.flood(args.num_requests, args.at_once, lambda ended: bar.update()))
        seconds, lost = time.perf_counter() - started, blocks_lost(url)
    assert not any("Traceback" in line for line in server.said), "".join(server.said)
    ended = ", ".join(f"{count:,} {how}" for how, count in sorted(flood.ended.items()))
    print(f"{args.num_requests:,} requests: {ended}; {seconds:.0f} s, {lost} blocks lost")
    counted = {name: getattr(flood, name) for name in ("ended", "most_open", "errors", "retries", "memory")}
    return [counted | {"rung": args.rung, "blocks_lost": lost, "seconds": seconds}]


if __name__ == "__main__":
    main()
