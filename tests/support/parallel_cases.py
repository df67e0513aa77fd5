"""What several ranks do, and one process as well: started by torchrun, each rank writes what it saw as JSON.

torchrun --nproc-per-node N tests/support/parallel_cases.py CASE FOLDER DEVICE
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig, StreamingServer
from labkit.engine.guard import BROKEN
from labkit.engine.step import fused
from labkit.errors import BrokenEngineError, RankError, RequestError
from labkit.model import GPT2Config, LanguageModel, load_model
from labkit.model.checkpoint import random_network
from labkit.model.small import SMALL_LLAMA
from labkit.model.tokenizer import WordTokenizer
from labkit.parallel import ParallelEngine, TorchRanks
from labkit.parallel.ranks import end_process

SETTINGS: dict[str, Any] = {
    "dtype": torch.float32,
    "cache": CacheConfig(block_size=4, max_blocks_per_layer=20),  # too few for all: some wait again
    "scheduler": SchedulerConfig(max_batch_size=3, prefill_chunk_tokens=8, prefill_max_tokens=32),
}
SHARED = tuple(range(50, 64))  # how half of the prompts begin
PROMPTS = [(*SHARED, 1, 2), (1, 2, 3, 4) * 6, (3,) * 20, (*SHARED, 9)]
PARAMS = [
    SamplingParams(6, temperature=0.9, top_k=20, top_p=0.9, seed=3),
    SamplingParams(8),
    SamplingParams(9, temperature=0.8),  # its seed is drawn on rank 0, and told
    SamplingParams(5, logprobs=2, stop="no such text"),
]
RUNGS = {
    "random:small": ("07", "09", "11", "13", "14"),
    "random:small-llama": ("08", "10", "14", "16"),
    "random:small-qwen3": ("12",),
    "three heads": ("07", "14"),  # so one rank has more
    "one key": ("09", "14"),  # for all heads, so each rank has it
}
ON_GPUS = ("09", "14")  # rungs of random:small-llama
STEPS_BEFORE = 3  # a fault
BUDGET = 1.35e9  # bytes of a GPU
SOON = 3.0  # seconds after which a rank is late


OTHERS = {
    "three heads": GPT2Config(256, 64, 24, 2, 3),
    "one key": replace(SMALL_LLAMA, num_key_value_heads=1),
}


def model_of(name: str) -> LanguageModel:
    if name not in OTHERS:
        return load_model(name)
    network = random_network(OTHERS[name], seed=0)
    for parameter in network.parameters():
        parameter.data = 20 * parameter.data if parameter.dim() == 2 else parameter.data + 0.1
    return LanguageModel(name, network, WordTokenizer(256, None))


def outcome(engine: InferenceEngine) -> dict[str, Any]:
    """Requests in chunks, some of which wait again, and some that begin as others did."""
    random.seed(0)
    made = engine.generate(PROMPTS, PARAMS)
    return {"tokens": [list(completion.token_ids) for completion in made], **books(engine)}


def flood(engine: InferenceEngine) -> dict[str, Any]:
    """Requests that come, and leave again, between random steps."""
    draw, tokens = random.Random(1), {}
    for _ in range(30):
        if draw.random() < 0.7:
            prompt = [draw.randrange(256) for _ in range(draw.randrange(1, 24))]
            params = SamplingParams(draw.randrange(1, 12), temperature=draw.choice((0.0, 0.9)), seed=7)
            tokens[engine.add_request([*SHARED, *prompt] if draw.random() < 0.4 else prompt, params)] = []
        if tokens and draw.random() < 0.2:
            try:
                engine.cancel(draw.choice(list(tokens)))
            except RequestError:  # it has ended
                continue
        for output in engine.step():
            tokens[output.request_id].append(output.token_id)
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id].append(output.token_id)
    return {"tokens": list(tokens.values()), **books(engine)}


def books(engine: InferenceEngine) -> dict[str, Any]:
    """What an engine has counted and holds, but for times."""
    engine.check_integrity()
    stats = engine.stats()
    counters = {name: n for name, n in asdict(stats.counters).items() if not isinstance(n, float)}
    return {"counters": counters, "free_blocks": stats.free_blocks}


def run_tokens(ranks: TorchRanks) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, rungs in RUNGS.items():
        for rung in rungs:
            engine = ParallelEngine(model_of(name), ranks, LADDER[rung].options, **SETTINGS)
            made = engine.lead_or_follow(lambda engine=engine: outcome(engine))
            seen[f"{name} {rung}"] = made or books(engine)
    engine = ParallelEngine(load_model("random:small-llama"), ranks, **SETTINGS)
    seen["flood"] = engine.lead_or_follow(lambda: flood(engine)) or books(engine)
    engine = ParallelEngine(load_model("random:small"), ranks, **SETTINGS)
    seen["served"] = engine.lead_or_follow(lambda: served(engine)) or books(engine)
    seen["raises"] = run_fault(ranks, raise_injected)
    return seen


def served(engine: InferenceEngine) -> dict[str, Any]:
    """Requests of a server, whose thread drives the engine; one of them is left."""
    with StreamingServer(engine) as server:
        left = server.submit(PROMPTS[0], PARAMS[0])
        next(left)
        left.close()
        stream = server.submit(PROMPTS[1], PARAMS[1])
        tokens = [token_id for chunk in stream for token_id in chunk.token_ids]
    return {"tokens": tokens, **books(engine)}


def run_gpus(ranks: TorchRanks) -> dict[str, Any]:
    """As much as a minute has room for, most of which compiles kernels."""
    seen: dict[str, Any] = {"budget": within_a_budget(ranks)}
    model = load_model("random:small-llama")
    for rung in ON_GPUS:
        engine = ParallelEngine(model, ranks, LADDER[rung].options, **SETTINGS)
        seen[rung] = engine.lead_or_follow(lambda engine=engine: outcome(engine)) or books(engine)
    fused.WIDE_LAYER = 0  # products are the library's, and sums bring the norms
    engine = ParallelEngine(model, ranks, **SETTINGS)
    seen["wide"] = engine.lead_or_follow(lambda: outcome(engine)) or books(engine)
    ranks.has_peer_memory = False
    engine = ParallelEngine(model, ranks, **SETTINGS)
    seen["NCCL"] = engine.lead_or_follow(lambda: flood(engine)) or books(engine)
    seen["late"] = run_fault(ranks, lambda: time.sleep(2 * SOON), timeout=SOON)
    return seen


def within_a_budget(ranks: TorchRanks) -> list[int | str]:
    """A model that is too large for the memory that a process may take of its GPU, and not for two."""
    memory = torch.cuda.get_device_properties(ranks.device).total_memory
    torch.cuda.set_per_process_memory_fraction(BUDGET / memory, ranks.device)
    model = load_model("random:gpt2-medium")
    seen, settings = list[int | str](), {**SETTINGS, "options": LADDER["07"].options}
    try:
        InferenceEngine(model, device=ranks.device, **settings)
    except torch.OutOfMemoryError:
        seen.append("too large for one")
    torch.cuda.empty_cache()
    engine = ParallelEngine(model, ranks, **settings)
    made = engine.lead_or_follow(lambda: engine.generate(PROMPTS, PARAMS))
    torch.cuda.set_per_process_memory_fraction(1.0, ranks.device)
    return seen + [len(completion.token_ids) for completion in made or ()]


# --- as tests start them ---------------------------------------------------------------------------------


def run_ranks(
    case: str, folder: Path, device: str = "cpu", size: int = 2
) -> subprocess.CompletedProcess[str]:
    """A case by so many ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    command = [*torchrun, __file__, case, str(folder), device]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        try:
            said = job.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)  # all ranks of this job, however they hang
            said = job.communicate()
    return subprocess.CompletedProcess(command, job.returncode, *said)


def seen_by_ranks(case: str, folder: Path, device: str = "cpu", size: int = 2) -> list[dict[str, Any]]:
    """What each of so many ranks saw."""
    done = run_ranks(case, folder, device, size)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(size)]


def check_late_and_killed(folder: Path, device: str, size: int) -> None:
    """Rank 1 sleeps, and is killed then: all others name it, soon, and end."""
    done = run_ranks("late", folder, device, size)
    seen = [json.loads(path.read_text()) for path in folder.iterdir()]
    assert len(seen) == size - 1, done.stderr[-3000:]
    for each in seen:
        assert each["error"] == f"rank 1 did not come within {SOON:g} seconds"
        assert each["then"] == BROKEN
        assert each["seconds"] < 20
    assert "exitcode: -9) local_rank: 1" in done.stderr


# --- faults ----------------------------------------------------------------------------------------------


class Injected(Exception):
    pass


def run_fault(ranks: TorchRanks, fault: Any, timeout: float = 60.0) -> dict[str, Any]:
    """Rank 1's step does `fault` in the middle of all requests; what each rank raises, and how soon."""
    engine = ParallelEngine(load_model("random:small-llama"), ranks, **SETTINGS)
    if ranks.rank == 1:
        step, calls = engine.decode_step.device_step, iter(range(100))
        engine.decode_step.device_step = lambda *args: fault() if next(calls) == STEPS_BEFORE else step(*args)
    ranks.timeout, started = timeout, time.monotonic()
    try:
        engine.lead_or_follow(lambda: engine.generate(PROMPTS, PARAMS))
        raise AssertionError("the fault was not seen")
    except RankError as error:
        seen: dict[str, Any] = {"error": str(error), "seconds": time.monotonic() - started}
    try:
        engine.generate(PROMPTS, PARAMS)
    except BrokenEngineError as error:
        seen["then"] = str(error)
    return seen


def raise_injected() -> None:
    raise Injected("planted here")


def sleep_and_die() -> None:
    time.sleep(2 * SOON)
    os.kill(os.getpid(), signal.SIGKILL)


def run_late(ranks: TorchRanks) -> dict[str, Any]:
    return run_fault(ranks, sleep_and_die, timeout=SOON)


def main(case: str, folder: Path, device: str) -> None:
    ranks = TorchRanks(device)
    seen = {"tokens": run_tokens, "late": run_late, "gpus": run_gpus}[case](ranks)
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    end_process(0)  # behind a fault, no rank can `leave`


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
