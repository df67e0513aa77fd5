"""`python -m labkit.bench profile`: where a decode step's time goes, and how far that is from the limit."""

import argparse
from pathlib import Path
from statistics import median

from tqdm import tqdm

from labkit.bench.limit import copy_bandwidth, decode_limit
from labkit.bench.profile import profile_decode_step
from labkit.bench.record import make_record, write_record
from labkit.bench.steady import steady_decode, time_decode_steps
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.ladder import LADDER
from labkit.model import load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rung", default="00", choices=list(LADDER), help="rung of the ladder")
    parser.add_argument("--model", default="random:gpt2", help="directory, hub id or random:gpt2")
    parser.add_argument("--device", default=None, help="cpu or cuda; the best there is by default")
    parser.add_argument("--batch-sizes", type=int_list, default=(1, 8, 64), help="requests decoded together")
    parser.add_argument("--context", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=30, help="decode steps timed for each batch size")
    parser.add_argument("--json", type=Path, help="write a record to this file")


def int_list(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def run(args: argparse.Namespace) -> None:
    model = load_model(args.model)
    engine = InferenceEngine(
        model,
        LADDER[args.rung].options,
        device=args.device,
        cache=CacheConfig(prefix_cache=False),
        scheduler=SchedulerConfig(
            max_batch_size=max(args.batch_sizes), prefill_max_batch_size=max(args.batch_sizes)
        ),
    )
    bandwidth = copy_bandwidth(engine.device)
    samples = [measure(engine, b, args, bandwidth) for b in tqdm(args.batch_sizes, desc="batch sizes")]
    print(f"{engine.model}, rung {args.rung}, context {args.context}, copy {bandwidth / 1e9:,.0f} GB/s")
    for sample in samples:
        report(sample)
    if args.json:
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k != "run"}
        write_record(make_record("profile", engine.device, settings, samples), args.json)


def measure(engine: InferenceEngine, batch_size: int, args: argparse.Namespace, bandwidth: float) -> dict:
    """Raw step times, the paths taken while they were made, and one profiled step."""
    prompts = [[i % engine.model.config.vocab_size for i in range(args.context)]] * batch_size
    with steady_decode(engine, prompts):
        paths_before = engine.kv_manager.append_paths.copy()
        context_lens = [r.session.num_tokens + args.steps // 2 for r in engine.scheduler.running]
        step_seconds = time_decode_steps(engine, args.steps)
        append_paths = dict(engine.kv_manager.append_paths - paths_before)
        profile = profile_decode_step(engine)
    limit = decode_limit(engine.model.gpt2, context_lens, bandwidth)
    return {
        "batch_size": batch_size,
        "step_seconds": step_seconds,
        "append_paths": append_paths,
        "bandwidth": bandwidth,
        "limit_seconds": limit.seconds,
        "profile": profile.to_dict(),
    }


def report(sample: dict) -> None:
    """Print one batch size: its step, its limit, and the share of each named range."""
    step, profile = median(sample["step_seconds"]), sample["profile"]
    rate = sample["batch_size"] / step
    print(
        f"\nB = {sample['batch_size']}: step {1e3 * step:.2f} ms, {rate:,.0f} tokens/s, "
        f"{100 * sample['limit_seconds'] / step:.1f} % of the limit ({1e3 * sample['limit_seconds']:.3f} ms)"
    )
    for name in dict.fromkeys(name for name, _, _ in profile["ranges"]):
        share = sum(duration for n, _, duration in profile["ranges"] if n == name) / profile["duration"]
        print(f"  {name:<50} {100 * share:5.1f} % of the profiled step")
