"""One model on one GPU, and cut among several: the command, and where that pays by its records."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from labkit.bench.comparison import in_turn
from labkit.bench.flags import LENGTH, ByDevice, ModelFlags, RungFlag, batch_sizes_flag, flag, rounds_flag
from labkit.bench.limit import measure_bandwidth, on_paper, workload_limit
from labkit.bench.profile import profile_decode_step
from labkit.bench.workload import Workload
from labkit.engine import InferenceEngine, SchedulerConfig
from labkit.engine.device import default_dtype
from labkit.ladder import LADDER
from labkit.model import LanguageModel, Network, load_model
from labkit.model.checkpoint import random_network
from labkit.model.random_configs import RANDOM_CONFIGS
from labkit.model.tokenizer import WordTokenizer
from labkit.parallel import ParallelEngine, TorchRanks
from labkit.results.comparison import Comparison
from labkit.results.profiles import durations
from labkit.results.ranks import CUT, CUT_NCCL, ONE, RanksRecord, RanksRun
from labkit.watch import steady_decode

FEW_PROMPT_TOKENS = 64  # computed in one step: the fewer, the fewer graphs of prompts are captured
PROFILED = 16  # tokens that are left to the first request when the last has come: enough for the profile


@dataclass
class RunRanks(RungFlag, ModelFlags):
    """Serve the same requests on one GPU, and cut among all of a torchrun job, in turn.

        torchrun --nproc-per-node 2 -m labkit.bench ranks --model random:gpt2-xl

    All requests come at once and make all their tokens. Where GPUs reach each other's memory, sums are read
    from there on one side, and made by NCCL on another. Random weights are drawn on the GPU itself, if they
    are of a published size: others than `load_model` draws.
    """

    kind = "ranks"

    batch_sizes: tuple[int, ...] = batch_sizes_flag(ByDevice((1, 32), (1, 4)), "are served together")
    prompt_tokens: int = flag(ByDevice(32, 8), "each prompt has this many tokens", LENGTH)
    max_new_tokens: int = flag(ByDevice(256, 16), "a request makes this many tokens")
    rounds: int = rounds_flag(2)

    def run(self) -> None:
        """Raises OptionError outside of a torchrun job, and RankError if a rank fails."""
        ranks = TorchRanks(self.device)
        kind, _, size = self.model.rpartition(":")
        dtype = default_dtype(ranks.device)
        if kind == "random" and size in RANDOM_CONFIGS:
            # Drawn there: it takes seconds where a CPU takes minutes.
            config = RANDOM_CONFIGS[size]
            network = random_network(config, self.seed, ranks.device).to(dtype)
            words = WordTokenizer(config.vocab_size, config.eos_token_id)
            model = LanguageModel(self.model, network, words)
        else:
            model = load_model(self.model, seed=self.seed).to(ranks.device, dtype)
        sides = make_sides(self, model, ranks)
        samples = list[RanksRun]()
        for requests in self.batch_sizes:
            workload = workload_of(self, model, requests)
            measures = [partial(serve, workload, *side) for side in sides.items()]
            for (engine, lead), runs in zip(sides.values(), in_turn(measures, self.rounds), strict=True):
                kernels = lead(partial(kernels_of_a_step, engine, workload))
                if kernels is not None:
                    samples += [*filter(None, runs[:-1]), replace(runs[-1], kernels_us=kernels)]
            if ranks.rank == 0:
                record = self.record(samples, measure_bandwidth(ranks.device), ranks=ranks.size)
                table = record.table().to_string()
                print(f"{model}, rung {self.rung}, {ranks.size} ranks\n{table}", flush=True)
                self.write(record)
        ranks.leave()


def workload_of(args: RunRanks, model: LanguageModel, requests: int) -> Workload:
    """So many requests at once, of different tokens."""
    V, length = model.config.vocab_size, args.prompt_tokens
    prompts = [tuple((7 * i + 31 * t) % V for t in range(1, length + 1)) for i in range(requests)]
    most = max(args.batch_sizes)
    scheduler = SchedulerConfig(max_batch_size=most, prefill_max_tokens=FEW_PROMPT_TOKENS)
    return Workload.alike(model, prompts, args.max_new_tokens, scheduler=scheduler)


Lead = Callable[[Callable[[], Any]], Any]  # calls a function on the first rank: what that returns, else None


def make_sides(args: RunRanks, model: LanguageModel, ranks: TorchRanks) -> dict[str, tuple[Any, Lead]]:
    """An engine for each side, and how the first rank drives it."""
    options, workload = LADDER[args.rung].options, workload_of(args, model, max(args.batch_sizes))
    is_first = ranks.rank == 0
    whole = workload.make_engine(options) if is_first else None
    sides: dict[str, tuple[Any, Lead]] = {ONE: (whole, lambda drive: drive() if is_first else None)}
    settings = workload.engine_settings()
    ways = {CUT: True, CUT_NCCL: False} if ranks.has_peer_memory else {CUT: False}
    for side, ranks.has_peer_memory in ways.items():
        engine = ParallelEngine(model, ranks, options, **settings)
        sides[side] = engine, engine.lead_or_follow
    return sides


def serve(workload: Workload, side: str, engine_and_lead: tuple[Any, Lead]) -> RanksRun | None:
    """A run of the workload; None on all ranks but the first."""
    engine, lead = engine_and_lead
    run = lead(partial(workload.run, engine))
    if run is None:
        return None
    return RanksRun(side, len(workload.requests), run.decode_seconds, run.decoded_tokens, {})


def kernels_of_a_step(engine: InferenceEngine, workload: Workload) -> dict[str, float]:
    prompts = workload.prompt_ids()
    joining = sum(-(-len(prompt) // FEW_PROMPT_TOKENS) for prompt in prompts)  # steps until the last is there
    with steady_decode(engine, prompts, max_new_tokens=joining + PROFILED):
        profile = profile_decode_step(engine)
    return {name: round(us, 1) for name, us in durations(profile.kernels).items()}


# --- where it pays: records beside the bytes that each GPU has to read -----------------------------------

SUMS_PER_LAYER = 2


@dataclass(frozen=True)
class Gain:
    """A model on one GPU and cut among several, by whichever way to sum was faster, with so many requests.

    name: the model's, without saying that its weights are random. kind: how many GPUs, and which: "2 × H100".
    rates: tokens per second on one GPU and on several. bandwidths: bytes per second that each GPU read of
    weights, keys and values, on one and on several; sum_us: microseconds of one sum over GPUs, in a profiled
    step. Both are None for a model without a published size. by_nccl: the comparison with NCCL's sums.
    read_bandwidth: bytes per second of the GPU, reading alone.
    """

    name: str
    kind: str
    requests: int
    gpus: int
    rates: tuple[float, float]
    comparison: Comparison
    by_nccl: Comparison
    bandwidths: tuple[float, float] | None
    sum_us: float | None
    read_bandwidth: float | None


def gain_of(record: RanksRecord, requests: int, network: Network | None) -> Gain:
    """network: the model on paper; None for one without a published size."""
    side, bandwidths, sum_us = record.best_side(requests), None, None
    rates = record.rate(ONE, requests), record.rate(side, requests)
    if network is not None:
        prompts, new = [record.prompt_tokens] * requests, [record.max_new_tokens] * requests
        limit = workload_limit(network, prompts, new, requests, bandwidth=1.0)
        bytes_of_token = limit.num_bytes / limit.num_tokens
        bandwidths = rates[0] * bytes_of_token, rates[1] * bytes_of_token / record.ranks
        sum_us = record.sums_us(side, requests) / (SUMS_PER_LAYER * network.config.num_layers) or None
    return Gain(
        name=record.model.removeprefix("random:"),
        kind=f"{record.ranks} × {record.host.device.removeprefix('NVIDIA ').split()[0]}",
        requests=requests,
        gpus=record.ranks,
        rates=rates,
        comparison=record.comparison(side, requests),
        by_nccl=record.comparison(CUT_NCCL, requests),
        bandwidths=bandwidths,
        sum_us=sum_us,
        read_bandwidth=record.read_bandwidth,
    )


def all_gains(records: Iterable[RanksRecord]) -> list[Gain]:
    """What records say, by model, number of GPUs and of requests; the largest model comes first."""
    made = []
    for record in records:
        name = record.model.removeprefix("random:")
        network = on_paper(name) if name in RANDOM_CONFIGS else None
        size = 0 if network is None else network.config.num_matrix_weights
        for requests in record.distinct("requests"):
            made.append((-size, name, record.ranks, requests, gain_of(record, requests, network)))
    return [gain for *_, gain in sorted(made, key=lambda each: each[:4])]


def gains_table(gains: Iterable[Gain]) -> pd.DataFrame:
    """A row per model, number of GPUs and of requests."""
    rows = []
    for gain in gains:
        one, cut = gain.rates
        read = gain.bandwidths and " → ".join(f"{each / 1e9:,.0f}" for each in gain.bandwidths)
        rows.append(
            {
                "model": gain.name,
                "GPUs": f"{gain.gpus}",
                "requests": f"{gain.requests}",
                "tokens/s, one": f"{one:,.0f}",
                "tokens/s, cut": f"{cut:,.0f}",
                "×": f"{gain.comparison.speedup:.2f} {gain.comparison.interval}",
                "verdict": gain.comparison.verdict,
                "× by NCCL": f"{gain.by_nccl.speedup:.2f}",
                "GB/s of each GPU": read or "–",
                "a sum (µs)": "–" if gain.sum_us is None else f"{gain.sum_us:.1f}",
            }
        )
    return pd.DataFrame(rows).set_index("model") if rows else pd.DataFrame()


def by_model(gains: Sequence[Gain]) -> dict[str, dict[str, dict[int, Comparison]]]:
    """The comparisons, by model, GPUs and number of requests."""
    found: dict[str, dict[str, dict[int, Comparison]]] = {}
    for gain in gains:
        found.setdefault(gain.name, {}).setdefault(gain.kind, {})[gain.requests] = gain.comparison
    return found
