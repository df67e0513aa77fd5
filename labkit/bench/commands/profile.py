"""profile: shows where a decode step's time goes, and how far the step is from the limit."""

from dataclasses import dataclass

from tqdm import tqdm

from labkit.bench.commands.arguments import COUNT, LENGTH, ModelFlags, RungFlag, batch_sizes_flag, model_of
from labkit.bench.commands.flags import ByDevice, flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.limit import decode_limit, measure_bandwidth, time_decode_steps
from labkit.bench.profile import profile_decode_step
from labkit.bench.workload import difference
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.ladder import LADDER
from labkit.results.profiles import ProfiledStep, durations
from labkit.watch import steady_decode


@dataclass
class Settings(ModelFlags, RungFlag):
    batch_sizes: tuple[int, ...] = batch_sizes_flag(ByDevice((1, 8, 64), (1, 4, 16)))
    context: int = flag(256, "each prompt has this many tokens", LENGTH)
    steps: int = flag(30, "this many decode steps are timed for each batch size", COUNT)


def run(args: Settings) -> None:
    engine = InferenceEngine(
        model_of(args),
        LADDER[args.rung].options,
        device=args.device,
        cache=CacheConfig(prefix_cache=False),
        scheduler=SchedulerConfig(
            max_batch_size=max(args.batch_sizes), prefill_max_batch_size=max(args.batch_sizes)
        ),
    )
    bandwidth = measure_bandwidth(engine.device)
    samples: list[ProfiledStep] = []
    with args.until_interrupted(samples):
        for batch_size in tqdm(args.batch_sizes, desc="batch sizes"):
            prompts = [[i % engine.model.config.vocab_size for i in range(args.context)]] * batch_size
            with steady_decode(engine, prompts):
                paths_before = engine.stats().append_paths
                context_lens = [s.num_tokens + args.steps // 2 for s in engine.scheduler.running.values()]
                step_seconds = time_decode_steps(engine, args.steps)
                append_paths = difference(paths_before, engine.stats().append_paths)
                profile = profile_decode_step(engine)
            limit = decode_limit(engine.model.network, context_lens, bandwidth.copy).seconds
            timed = tuple(step_seconds), append_paths, limit, profile
            samples.append(ProfiledStep(args.rung, batch_size, *timed))
    print(f"{engine.model}, rung {args.rung}, context {args.context}, {bandwidth}")
    for sample in samples:
        step, limit = sample.median_seconds, sample.limit_seconds
        print(
            f"\nB = {sample.batch_size}: step {1e3 * step:.2f} ms, {sample.batch_size / step:,.0f} tokens/s, "
            f"{100 * limit / step:.1f} % of the limit ({1e3 * limit:.3f} ms)"
        )
        for name, us in durations(sample.profile.ranges).items():
            print(f"  {name:<50} {100 * us / sample.profile.duration:5.1f} % of the profiled step")
    record_if_asked(args, "profile", engine.device, samples, bandwidth)
