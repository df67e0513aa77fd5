"""Flags that several commands share, named as in the write-ups, and what becomes of them."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from math import nan
from pathlib import Path

from labkit import ranges
from labkit.bench.commands.defaults import ByDevice, as_written
from labkit.bench.commands.targets import target_directory, target_file, utf8
from labkit.bench.loads import ALIKE, LOADS, Asked, make_load
from labkit.bench.workload import Request, Workload
from labkit.checks import shown
from labkit.engine import CacheConfig, SamplingParams, SchedulerConfig
from labkit.engine.device import default_dtype, pick_device
from labkit.errors import CheckpointError, OptionError
from labkit.ladder import LADDER
from labkit.model import LanguageModel, load_model
from labkit.model.checkpoint import check_seed
from labkit.options import EngineOptions
from labkit.results.comparison import MIN_ROUNDS

# More of something than any machine gets through, so that a slip of the hand is no hour of waiting.
MOST, MOST_AT_ONCE, LONGEST, MOST_TOKENS = 1_000_000, 65_536, 10_000, 1_000_000_000

# Where a record goes without --json.
NO_RECORD, OWN_RECORD = "none is written", "one in data/results, named after this machine"


# Defaults of lists are text, as on a command line: so `--help` shows them as they are written.
MODEL = ByDevice("random:gpt2", "data/tiny-gpt2")


def add_common_arguments(parser: argparse.ArgumentParser, record: str = NO_RECORD) -> None:
    """Add --model and --seed, --device and --json; `record` says where a record goes without the latter."""
    add = parser.add_argument
    add(
        "--model",
        "--hf-model-id",
        default=MODEL,
        metavar="MODEL",
        help="the command measures this model: a directory, a hub id, or random weights such as random:gpt2 "
        "(default: %(default)s)",
    )
    add(
        "--seed",
        type=seed,
        default=0,
        metavar="N",
        help="random weights are drawn with this seed (default: %(default)s)",
    )
    add_device_arguments(parser, record)


def add_device_arguments(parser: argparse.ArgumentParser, record: str = NO_RECORD) -> None:
    """Add --device and --json; `record` says where a record goes without the latter."""
    add = parser.add_argument
    add(
        "--device",
        help="the command runs on this device: cpu, cuda, cuda:1, ... (default: the best there is)",
    )
    add(
        "--json",
        type=target_file,
        metavar="FILE",
        help=f"the command writes a record to this file (default: {record})",
    )


def add_rung_argument(parser: argparse.ArgumentParser) -> None:
    """Add --rung, by default the last."""
    last = list(LADDER)[-1]
    parser.add_argument(
        "--rung",
        type=rung_number,
        default=last,
        metavar="RUNG",
        help="this rung runs (default: the last, %(default)s)",
    )


def add_rungs_argument(parser: argparse.ArgumentParser, rungs: Iterable[str] = LADDER) -> None:
    """Add --rungs, by default all."""
    parser.add_argument(
        "--rungs",
        type=rung_list,
        default=",".join(rungs),
        metavar="RUNG,RUNG,...",
        help="these rungs run (default: %(default)s)",
    )


def add_batch_sizes_argument(
    parser: argparse.ArgumentParser, batch_sizes: Sequence[int] | ByDevice, what: str = "are decoded together"
) -> None:
    """Add --batch-sizes: of each of these numbers of requests, `what` happens."""
    parser.add_argument(
        "--batch-sizes",
        type=list_of(batch),
        default=batch_sizes if isinstance(batch_sizes, ByDevice) else as_written(tuple(batch_sizes)),
        metavar="N,N,...",
        help=f"this many requests {what}, one number after another (default: %(default)s)",
    )


def add_count_argument(
    parser: argparse.ArgumentParser, flag: str, default: int | ByDevice, what: str
) -> None:
    """Add a flag that takes a number of something, 1 or more; `what`, a sentence, says what it counts."""
    parser.add_argument(
        flag, type=positive, default=default, metavar="N", help=f"{what} (default: %(default)s)"
    )


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a workload: its requests, and the order in which they are served."""
    add = parser.add_argument
    add(
        "--prompt",
        type=utf8,
        default="Hello",
        metavar="TEXT",
        help="every prompt is made of this text (default: %(default)s)",
    )
    add(
        "--prompt-repeats",
        type=list_of(length),
        default="1",
        metavar="N,N,...",
        help="requests in turn repeat the prompt this many times; 1,4 makes half of them longer "
        "(default: %(default)s)",
    )
    add(
        "--load",
        choices=LOADS,
        default=ALIKE,
        help="the requests are alike, as the other flags say, or changed as labkit/bench/loads.py says, with "
        "random prompts where their lengths differ (default: %(default)s)",
    )
    add(
        "--rate",
        type=rate,
        metavar="R",
        help="with --load arrivals, this many requests arrive per second (default: none)",
    )
    add("--pretok", action="store_true", help="prompts are tokenized before the clock starts")
    add_count_argument(parser, "--num-requests", 16, "this many requests are served")
    add_count_argument(parser, "--max-new-tokens", 64, "a request makes at most this many tokens")
    add("--no-stop-on-eos", action="store_true", help="every request makes all its tokens")
    add(
        "--max-batch-size",
        type=batch,
        default=8,
        metavar="N",
        help="at most this many requests are decoded together (default: %(default)s)",
    )
    add(
        "--prefill-max-batch-size",
        type=batch,
        metavar="N",
        help="at most this many requests are admitted in one step (default: as --max-batch-size)",
    )
    add(
        "--prefill-max-tokens",
        type=num_tokens,
        metavar="N",
        help="at most this many prompt tokens are admitted in one step (default: all)",
    )
    add(
        "--prefill-admission-policy",
        choices=("fifo", "pack"),
        default="fifo",
        help="requests are admitted in order of arrival, or the shortest prompts of a window first "
        "(default: %(default)s)",
    )
    add("--decode-first", action="store_true", help="each step decodes before it admits")
    add(
        "--max-active-requests",
        type=batch,
        metavar="N",
        help="at most this many requests hold cache memory; this engine decodes all of them in each step, so "
        "the smaller of this and --max-batch-size counts (default: as --max-batch-size)",
    )
    add("--no-prefix-cache", action="store_true", help="every prompt is computed, even one just computed")
    add(
        "--paged-attn",
        action="store_true",
        help="this flag is for the write-ups' command lines; paged attention is always on here",
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the numbers of runs, and what is traced beside them."""
    add = parser.add_argument
    add(
        "--warmup-runs",
        type=natural,
        default=1,
        metavar="N",
        help="this many runs come first and are not measured (default: %(default)s)",
    )
    add_count_argument(parser, "--repeat-runs", 3, "this many runs are measured")
    add(
        "--nvtx",
        action="store_true",
        help="the ranges of a step are named for Nsight Systems (CUDA only)",
    )
    add(
        "--profile",
        type=target_directory,
        metavar="DIR",
        help="after the measured runs, a trace of five decode steps is written to DIR, for "
        "chrome://tracing or ui.perfetto.dev (default: none is written)",
    )


def add_rounds_argument(parser: argparse.ArgumentParser, default: int) -> None:
    """Add --rounds."""
    what = f"in each of this many rounds every side runs twice; a comparison needs {MIN_ROUNDS}"
    add_count_argument(parser, "--rounds", default, what)


# --- from text -----------------------------------------------------------------------------------------


def whole_number(at_least: int, at_most: int) -> Callable[[str], int]:
    """The type of a flag that takes a whole number in this range, both ends included."""

    def convert(text: str) -> int:
        if at_least <= (value := as_int(text)) <= at_most:
            return int(value)
        said = f"{shown(text)} is not a whole number of {at_least} or more"
        raise argparse.ArgumentTypeError(f"{said}, {at_most:,} at most")

    return convert


def as_int(text: str) -> float:
    """The whole number in a text; NaN, which is in no range, for other texts and for 30 digits or more."""
    try:
        return int(text) if len(text) < 30 else nan
    except ValueError:
        return nan


def list_of(convert: Callable[[str], int]) -> Callable[[str], tuple[int, ...]]:
    """The type of a flag that takes numbers separated by commas, each of the type `convert`."""
    return lambda text: tuple(map(convert, text.split(",")))


positive = whole_number(1, MOST)
natural = whole_number(0, MOST)
batch = whole_number(1, MOST_AT_ONCE)
length = whole_number(1, LONGEST)  # of a prompt, in tokens or repeats
num_tokens = whole_number(1, MOST_TOKENS)


def rate(text: str) -> float:
    """The type of a flag that takes a number per second."""
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not 1e-3 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number from 0.001 to {MOST:,}")
    return value


def seed(text: str) -> int:
    """The type of a flag that takes the seed of random weights."""
    try:
        return check_seed(as_int(text))
    except CheckpointError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number of 64 bits") from None


def two_digits(text: str) -> str:
    """The number of a rung as the ladder has it: "07" of "7". Another text stays as it is."""
    return text.zfill(2) if text.isdecimal() else text


def rung_number(text: str) -> str:
    """The type of a flag that takes the number of a rung: "07", or "7"."""
    number = two_digits(text)
    if number not in LADDER:
        raise argparse.ArgumentTypeError(f"there is no rung {shown(text)}; there are {', '.join(LADDER)}")
    return number


def rung_list(text: str) -> tuple[str, ...]:
    """The type of a flag that takes numbers of rungs separated by commas, each once."""
    numbers = tuple(map(rung_number, text.split(",")))
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"{shown(text)} names a rung twice")
    return numbers


def rung_options(text: str) -> EngineOptions:
    """ "00", or "00,attention=plain": a rung, and options to change in it. Raises OptionError."""
    number, *changes = text.split(",")
    known = sorted(field.name for field in fields(EngineOptions))
    options = LADDER[two_digits(number)].options
    for change in changes:
        name, _, value = change.partition("=")
        if name not in known:
            raise OptionError(f"{name!r} is not an option; there are {', '.join(known)}")
        options = replace(options, **{name: value})
    return options


# --- from flags to things ------------------------------------------------------------------------------


def model_of(args: argparse.Namespace) -> LanguageModel:
    """The model that the flags name, on its device and in its dtype, once for all engines of the command."""
    device = pick_device(args.device)
    return load_model(args.model, seed=args.seed).to(device, default_dtype(device))


def workload_of(args: argparse.Namespace) -> Workload:
    """The workload that the flags describe. Raises LabkitError if model, device, policy or load cannot be
    had."""
    if getattr(args, "nvtx", False):
        ranges.enable_nvtx()
    model = model_of(args)
    asked = Asked(alike_requests(args, model), model.config, args.seed, args.rate)
    requests = make_load(args.load, asked)
    batch_size = min(args.max_batch_size, args.max_active_requests or args.max_batch_size)
    scheduler = SchedulerConfig(
        max_batch_size=batch_size,
        prefill_max_batch_size=args.prefill_max_batch_size or batch_size,
        prefill_max_tokens=args.prefill_max_tokens or num_prompt_tokens(model, requests),
        admission_policy=args.prefill_admission_policy,
        decode_first=args.decode_first,
    )
    cache = CacheConfig(prefix_cache=not args.no_prefix_cache)
    return Workload(model, requests, model.device, scheduler, cache)


def alike_requests(args: argparse.Namespace, model: LanguageModel) -> tuple[Request, ...]:
    """The requests that the flags describe before a load changes them; of each length there is one text."""
    repeats = [args.prompt_repeats[i % len(args.prompt_repeats)] for i in range(args.num_requests)]
    prompts: dict[int, str | tuple[int, ...]] = {n: " ".join([args.prompt] * n) for n in set(repeats)}
    if args.pretok:
        prompts = {n: tuple(model.tokenizer.encode(text)) for n, text in prompts.items()}
    params = SamplingParams(args.max_new_tokens, stop_on_eos=not args.no_stop_on_eos)
    request_of = {n: Request(prompt, params) for n, prompt in prompts.items()}
    return tuple(request_of[n] for n in repeats)


def num_prompt_tokens(model: LanguageModel, requests: Sequence[Request]) -> int:
    """Tokens of all prompts together, 1 at least."""
    counts = Counter(request.prompt for request in requests)
    encode = model.tokenizer.encode
    lengths = {p: len(encode(p)) if isinstance(p, str) else len(p) for p in counts}
    return max(1, sum(lengths[prompt] * count for prompt, count in counts.items()))


def settings_of(args: argparse.Namespace) -> dict:
    """The values of the flags, for a record."""
    kept = {name: value for name, value in vars(args).items() if name not in ("run", "json")}
    return {name: plain(value) for name, value in kept.items()}


def plain(value: object) -> object:
    """A flag's value in a form that JSON has."""
    return str(value) if isinstance(value, Path | EngineOptions) else value


def require_positions(workload: Workload, args: argparse.Namespace, name: str = "the run") -> None:
    """Raises OptionError if a prompt of the workload with its answer is longer than the model takes.

    name: what the message calls the workload.
    """
    most = workload.model.config.max_positions
    if workload.longest > most:
        raise OptionError(
            f"{name} has texts of up to {workload.longest} tokens, more than the {most} positions of "
            f"{args.model}: take a smaller --max-new-tokens"
        )


def require_decoding(args: argparse.Namespace) -> None:
    """Raises OptionError where no decode step would run, for a command that compares their time."""
    if args.max_new_tokens == 1:
        raise OptionError("--max-new-tokens 1 decodes nothing: a first token comes from its prefill; give 2")
