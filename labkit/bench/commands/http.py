"""http: serves readers in turn in the process and over HTTP, and says what share of the tokens comes through.

All readers ask at once, or, with --share, at random moments: each side is asked for that share of the tokens
per second that it makes when all ask at once. Each has a connection that is open, in processes of their own;
in the process they are tasks of one event loop. Over HTTP the engine is in a process of its own, as
`python -m labkit.serve` has it, once as it is and once with --frame-every 0, and then in a thread of the
server's. The command is read by sockets that only note when a frame came, and by the `openai` package's
client, which reads each frame as it comes. Prompts are random, and new in each run. TTFT runs from a reader's
request to its first text; ITL is between two frames of a reader, in each of which are all tokens that had
come. *Readers busy* is the share of a core that their busiest process takes: near 100 %, take more --clients.
The record is written after every round.
"""

import time
from dataclasses import dataclass, replace
from statistics import median

from labkit.bench.commands.arguments import BATCH, COUNT, ServedFlags, rounds_flag
from labkit.bench.commands.flags import ByDevice, Kind, flag
from labkit.bench.http import Readers, ServerCommand, Sides
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record, write_record
from labkit.engine.device import pick_device
from labkit.flag_types import real_number
from labkit.results.http import SIDES, HttpRun
from labkit.results.record import Record
from labkit.serve.engine_process import EngineSettings, keep_all_there_is

BLOCK_SIZE = 64


@dataclass
class Settings(ServedFlags):
    readers: int = flag(ByDevice(64, 8), "this many readers ask", COUNT)
    max_batch_size: int = flag(ByDevice(64, 8), "an engine decodes at most this many together", BATCH)
    prompt_tokens: int = flag(ByDevice(64, 16), "each prompt has this many tokens", COUNT)
    max_new_tokens: int = flag(ByDevice(256, 32), "each answer has this many tokens", COUNT)
    clients: int = flag(ByDevice(4, 1), "the readers are shared by this many processes", COUNT)
    share: float = flag(
        0.0,
        "the readers ask at random moments, for this share of a side's highest rate "
        "(default: %(default)s, all at once)",
        Kind(real_number(0, 1), "R"),
    )
    rounds: int = rounds_flag(3)


def run(args: Settings) -> None:
    """Raises StreamError if a reader is not served."""
    device = pick_device(args.device)
    blocks = -(-(args.prompt_tokens + args.max_new_tokens) // BLOCK_SIZE)
    size = args.readers, args.prompt_tokens, args.max_new_tokens
    max_blocks, num_tokens = 2 * args.max_batch_size * blocks, args.readers * args.max_new_tokens
    settings = EngineSettings(args.model, args.rung, str(device), args.max_batch_size, max_blocks)
    bandwidth, samples = measure_bandwidth(device), list[HttpRun]()
    within: dict[str, float] = {}  # seconds in which the readers of each side ask

    def record() -> Record:
        return make_record("http", device, bandwidth, args.settings | {"within": within}, samples)

    said("two servers start, and an engine is made here")
    with (
        Readers(args.clients) as readers,
        ServerCommand(settings) as server,
        ServerCommand(replace(settings, frame_every=0.0)) as unpaced,
        args.until_interrupted(samples),
    ):
        engine = settings.make_engine()
        sides = Sides(engine, (server.port(), unpaced.port()), readers, size)
        for side in SIDES:
            said(f"to warm up, {in_words(sides.run(side, 0.0))}")
        keep_all_there_is()  # as both processes of the command do
        for side in SIDES:
            within[side] = args.share and num_tokens / (args.share * sides.run(side, 0.0).rate)
        for number in range(args.rounds):
            for side in (*SIDES, *SIDES[::-1]):
                samples.append(sides.run(side, within[side]))
                said(f"round {number + 1} of {args.rounds}, {in_words(samples[-1])}")
            if args.json:
                write_record(record(), args.json)
    print(f"{engine}, {args.readers} readers x {args.max_new_tokens} tokens; times in milliseconds")
    print(record().table().to_string())
    if args.json:
        write_record(record(), args.json)


def said(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def in_words(run: HttpRun) -> str:
    ttft = 1e3 * median(run.ttft)
    return f"{run.side}: {run.rate:,.0f} tokens/s in {run.seconds:.2f} s, TTFT p50 {ttft:.1f} ms"
