"""The same readers served in turn in the process and, by the command, over HTTP to two clients.
`ServeReaders` is the benchmark."""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, repeat
from statistics import median

from labkit.bench.flags import BATCH, ByDevice, Kind, ServedFlags, flag, rounds_flag
from labkit.bench.limit import measure_bandwidth
from labkit.bench.streaming import felt_latency, run_streaming
from labkit.bench.workload import Request, Workload
from labkit.checks import real_number
from labkit.engine import InferenceEngine, SamplingParams
from labkit.engine.device import pick_device
from labkit.errors import StreamError
from labkit.results.served import BY_OPENAI, IN_PROCESS, SIDES, HttpRun, counted
from labkit.serve.engine_process import EngineSettings, keep_all_there_is

BLOCK_SIZE = 64


class Readers(ExitStack):
    """Processes of readers, which share the requests of a run. Close them, or use a `with` block."""

    def __init__(self, num_processes: int) -> None:
        super().__init__()
        command, pipe = [sys.executable, "-m", "labkit.bench.http_readers"], subprocess.PIPE
        processes = (
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(num_processes)
        )
        self._processes = [self.enter_context(process) for process in processes]

    def run(self, side: str, port: int, bodies: Sequence[dict], times: Sequence[float]) -> HttpRun:
        """Have each body asked for at its time. Raises StreamError if a reader was not served to its end."""
        num = len(self._processes)
        for i, process in enumerate(self._processes):
            asked = {"port": port, "bodies": bodies[i::num], "times": times[i::num]}
            asked["client"] = "openai" if side == BY_OPENAI else "socket"
            print(json.dumps(asked), file=process.stdin, flush=True)
        told = [json.loads(process.stdout.readline()) for process in self._processes]
        readers = [reader for each in told for reader in each["readers"]]
        if errors := [reader["error"] for reader in readers if reader["error"]]:
            raise StreamError(f"{len(errors)} of {len(readers)} readers were not served: {errors[0]}")
        return HttpRun(
            side=side,
            seconds=max(r["times"][-1] for r in readers) - min(r["sent"] for r in readers),
            tokens=sum(r["tokens"] for r in readers),
            frames=sum(len(r["times"]) for r in readers),
            ttft=rounded(r["times"][0] - r["sent"] for r in readers),
            itl=counted(b - a for r in readers for a, b in pairwise(r["times"])),
            busy=max(each["busy"] for each in told),
        )


def bodies_of(model: str, requests: Sequence[Request]) -> list[dict]:
    """What is sent for each request: greedy, streamed, all its tokens. model: its name for clients."""
    asked = {"model": model, "temperature": 0, "ignore_eos": True}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return [asked | {"prompt": each.prompt, "max_tokens": each.params.max_new_tokens} for each in requests]


class ServerCommand:
    """`python -m labkit.serve` with an engine, on a free port, which becomes ready while something else is
    made. Use a `with` block.

    said: the lines that it has written, of which all are there behind the block.
    """

    def __init__(self, settings: EngineSettings) -> None:
        flags = {f"--{name.replace('_', '-')}": value for name, value in asdict(settings).items()}
        line = [str(each) for flag, value in flags.items() if value is not None for each in (flag, value)]
        command = [sys.executable, "-m", "labkit.serve", "--port", "0", *line]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        # A pipe that nobody reads fills up, and then the server would wait for ever.
        self._listening = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)

    def port(self) -> int:
        """Where it listens, as soon as it does. Raises StreamError if it never will."""
        for text in self.process.stderr:
            self.said.append(text)
            if " at http://" in text:
                self._listening.start()
                return int(text.rpartition(":")[2])
        raise StreamError(f"the server did not start: {''.join(self.said)[-2000:]}")

    def __enter__(self) -> "ServerCommand":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait()
        if self._listening.ident is not None:
            self._listening.join()
        self.process.stderr.close()


def rounded(times: Iterable[float]) -> tuple[float, ...]:
    """Times in seconds, to a tenth of a microsecond."""
    return tuple(round(seconds, 7) for seconds in times)


@dataclass
class ServeReaders(ServedFlags):
    """Serve readers in the process and over HTTP, and say what share of the tokens comes through.

    All readers ask at once, or, with --share, at random moments: each side is asked for that share of the
    tokens per second that it makes when all ask at once. Each has a connection that is open, in processes of
    their own; in the process they are tasks of one event loop. Over HTTP the engine is in a process of its
    own, as `python -m labkit.serve` has it, and is read by sockets that only note when a frame came, and by
    the `openai` package's client, which reads each frame as it comes. Prompts are random, and new in each
    run. TTFT runs from a reader's request to its first text; ITL is between two frames of a reader, in each
    of which are all tokens that had come. *Readers busy* is the share of a core that their busiest process
    takes: near 100 %, take more --clients. The record is written after every round.
    """

    kind = "http"

    readers: int = flag(ByDevice(64, 8), "this many readers ask")
    max_batch_size: int = flag(ByDevice(64, 8), "an engine decodes at most this many together", BATCH)
    prompt_tokens: int = flag(ByDevice(64, 16), "each prompt has this many tokens")
    max_new_tokens: int = flag(ByDevice(256, 32), "each answer has this many tokens")
    clients: int = flag(ByDevice(4, 1), "the readers are shared by this many processes")
    share: float = flag(
        0.0,
        "the readers ask at random moments, for this share of a side's highest rate "
        "(default: %(default)s, all at once)",
        Kind(real_number(0, 1), "R"),
    )
    rounds: int = rounds_flag(3)

    def run(self) -> None:
        """Raises StreamError if a reader is not served."""
        device = pick_device(self.device)
        blocks = -(-(self.prompt_tokens + self.max_new_tokens) // BLOCK_SIZE)
        max_blocks, num_tokens = 2 * self.max_batch_size * blocks, self.readers * self.max_new_tokens
        settings = EngineSettings(self.model, self.rung, str(device), self.max_batch_size, max_blocks)
        bandwidth, samples = measure_bandwidth(device), list[HttpRun]()
        within: dict[str, float] = {}  # seconds in which the readers of each side ask
        said("a server starts, and an engine is made here")
        with (
            Readers(self.clients) as readers,
            ServerCommand(settings) as server,
            self.until_interrupted(samples),
        ):
            engine = settings.make_engine()
            run = partial(self.run_side, engine, readers, server.port(), random.Random(0))
            for side in SIDES:
                said(f"to warm up, {in_words(run(side, 0.0))}")
            keep_all_there_is()  # as both processes of the command do
            for side in SIDES:
                within[side] = self.share and num_tokens / (self.share * run(side, 0.0).rate)
            for number in range(self.rounds):
                for side in (*SIDES, *SIDES[::-1]):
                    samples.append(run(side, within[side]))
                    said(f"round {number + 1} of {self.rounds}, {in_words(samples[-1])}")
                self.record_if_asked(samples, bandwidth, within=within)
        record = self.record(samples, bandwidth, within=within)
        print(f"{engine}, {self.readers} readers x {self.max_new_tokens} tokens; times in milliseconds")
        print(record.table().to_string())
        self.write(record)

    def run_side(
        self,
        engine: InferenceEngine,
        readers: Readers,
        port: int,
        draw: random.Random,
        side: str,
        within: float,
    ) -> HttpRun:
        """One run of a side, with prompts of its own, so that no prefix cache helps. within: seconds in
        which the readers ask, each at a random moment; 0: all at once."""
        token_ids = range(engine.model.config.vocab_size)
        params = SamplingParams(self.max_new_tokens, stop_on_eos=False)
        prompts = [tuple(draw.choices(token_ids, k=self.prompt_tokens)) for _ in range(self.readers)]
        times = sorted(within * draw.random() for _ in prompts)
        requests = tuple(Request(*asked) for asked in zip(prompts, repeat(params), times, strict=False))
        if side == IN_PROCESS:  # the same readers as tasks of one event loop
            felt = felt_latency(
                run_streaming(Workload(engine.model, requests, engine.device), engine, tokenize_workers=1)
            )
            frames, ttft = len(felt.itl) + len(felt.ttft), rounded(felt.ttft)
            return HttpRun(side, felt.span, felt.tokens, frames, ttft, counted(felt.itl), 0.0)
        return readers.run(side, port, bodies_of(engine.model.name, requests), times)


def said(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def in_words(run: HttpRun) -> str:
    ttft = 1e3 * median(run.ttft)
    return f"{run.side}: {run.rate:,.0f} tokens/s in {run.seconds:.2f} s, TTFT p50 {ttft:.1f} ms"
