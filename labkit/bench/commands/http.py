"""http: serves readers in turn in the process and over HTTP, and says what share of the tokens comes through.

All readers ask at once, each over a connection that is open, from processes of their own; in the process they
are tasks of one event loop. Over HTTP the engine is in a process of its own, as `python -m labkit.serve` has
it, and then in a thread of the server's. Prompts are random, and new in each run. TTFT runs from a reader's
request to its first text; ITL is between two frames of a reader, in each of which are all tokens that had
come. *Readers busy* is the share of a core that their busiest process takes: near 100 %, take more --clients.
"""

import argparse

from tqdm import tqdm

from labkit.bench.commands.arguments import (
    MODEL,
    add_count_argument,
    add_device_arguments,
    add_rounds_argument,
    add_rung_argument,
    settings_of,
)
from labkit.bench.commands.defaults import ByDevice
from labkit.bench.commands.interruption import until_interrupted
from labkit.bench.http import Readers, Sides, served
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record, write_record
from labkit.engine.device import pick_device
from labkit.results.http import SIDES, HttpRun
from labkit.serve.engine_process import EngineSettings

BLOCK_SIZE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--model",
        default=MODEL,
        metavar="MODEL",
        help="a directory, a hub id, or random weights such as random:gpt2 (default: %(default)s)",
    )
    add_device_arguments(parser)
    add_rung_argument(parser)
    add_count_argument(parser, "--readers", ByDevice(64, 8), "this many readers ask at once")
    add_count_argument(parser, "--prompt-tokens", ByDevice(64, 16), "each prompt has this many tokens")
    add_count_argument(parser, "--max-new-tokens", ByDevice(256, 32), "each answer has this many tokens")
    add_count_argument(parser, "--clients", 1, "the readers are shared by this many processes")
    add_rounds_argument(parser, 5)


def run(args: argparse.Namespace) -> None:
    """Run every side in turn, print a table, and write a record if one is wanted.

    Raises StreamError if a reader is not served.
    """
    device = pick_device(args.device)
    blocks = -(-(args.prompt_tokens + args.max_new_tokens) // BLOCK_SIZE)
    settings = EngineSettings(args.model, args.rung, str(device), args.readers, 2 * args.readers * blocks)
    samples: list[HttpRun] = []
    with (
        Readers(args.clients) as readers,
        served(settings) as port,
        tqdm(total=len(SIDES) * (2 * args.rounds + 1), unit=" runs", disable=None) as bar,
        until_interrupted(args, samples),
    ):
        sides = Sides(settings, port, readers, args.prompt_tokens, args.max_new_tokens)
        for number, side in enumerate(in_turn(args.rounds)):
            made = sides.run(side)
            bar.update()
            samples += [made] if number >= len(SIDES) else []  # the first of each warms up
    record = make_record("http", device, measure_bandwidth(device), settings_of(args), samples)
    print(f"{sides.engine}, {args.readers} readers x {args.max_new_tokens} tokens; times in milliseconds")
    print(record.table().to_string())
    if args.json:
        write_record(record, args.json)


def in_turn(rounds: int) -> list[str]:
    """The sides in their order: once to warm up, and then to and fro."""
    return [*SIDES, *[side for _ in range(rounds) for side in (*SIDES, *SIDES[::-1])]]
