"""Flags that several commands share, named as in the seeds, and what becomes of them."""

import argparse
from dataclasses import fields, replace
from pathlib import Path

from labkit import ranges
from labkit.bench.workload import Workload
from labkit.engine import CacheConfig, SchedulerConfig
from labkit.engine.engine import default_dtype, pick_device
from labkit.errors import OptionError
from labkit.ladder import LADDER
from labkit.model import LanguageModel, load_model
from labkit.options import EngineOptions


def add_common_arguments(parser: argparse.ArgumentParser, model: str = "random:gpt2") -> None:
    parser.add_argument(
        "--model", "--hf-model-id", default=model, help=f"directory, hub id or random:gpt2 (default {model})"
    )
    parser.add_argument("--seed", type=int, default=0, help="of random weights (default 0)")
    add_device_arguments(parser)


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu or cuda; the best there is by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record to this file")


def add_rung_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rung", default=list(LADDER)[-1], choices=list(LADDER), help="the last by default")


def add_rungs_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rungs", type=rung_list, default=tuple(LADDER), help="comma-separated (default: all)"
    )


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """The requests of a benchmark and who is served when."""
    add = parser.add_argument
    add("--prompt", default="Hello", help="text of the prompts")
    add(
        "--prompt-repeats",
        type=int_list,
        default=(1,),
        metavar="N,N,...",
        help="how often each request in turn repeats the prompt; 1,4 makes half of them longer",
    )
    add("--pretok", action="store_true", help="tokenize the prompts before the clock starts")
    add("--num-requests", type=positive, default=16)
    add("--max-new-tokens", type=positive, default=64, help="tokens a request")
    add("--no-stop-on-eos", action="store_true", help="every request makes all its tokens")
    add("--max-batch-size", type=positive, default=8, help="requests decoded together at most (default 8)")
    add("--prefill-max-batch-size", type=positive, help="requests admitted in one step; as --max-batch-size")
    add("--prefill-max-tokens", type=positive, help="prompt tokens admitted in one step (default: all)")
    add(
        "--prefill-admission-policy",
        choices=("fifo", "pack"),
        default="fifo",
        help="in order of arrival, or the shortest prompts of a window first",
    )
    add("--decode-first", action="store_true", help="each step decodes before it admits")
    add(
        "--max-active-requests",
        type=positive,
        help="requests that hold cache memory at most; this engine decodes all of them in each step, so "
        "the smaller of this and --max-batch-size counts",
    )
    add("--no-prefix-cache", action="store_true", help="compute every prompt, even one just computed")
    add("--paged-attn", action="store_true", help="for the seeds' command lines: it is always on here")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--warmup-runs", type=natural, default=1, help="runs that are not measured")
    add("--repeat-runs", type=positive, default=3, help="measured runs")
    add("--nvtx", action="store_true", help="name the ranges of a step for Nsight Systems (CUDA only)")
    add(
        "--profile",
        type=Path,
        metavar="DIR",
        help="after the measured runs, write a trace of five decode steps to DIR, for chrome://tracing "
        "or ui.perfetto.dev",
    )


def add_rounds_argument(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--rounds", type=positive, default=default, help=f"each runs every side twice (default {default})"
    )


# --- from text -----------------------------------------------------------------------------------------


def positive(text: str) -> int:
    return whole_number(text, at_least=1)


def natural(text: str) -> int:
    return whole_number(text, at_least=0)


def whole_number(text: str, at_least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = at_least - 1
    if value < at_least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {at_least} or more")
    return value


def int_list(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def rung_list(text: str) -> tuple[str, ...]:
    numbers = tuple(text.split(","))
    try:
        for number in numbers:
            LADDER[number]
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return numbers


def rung_options(text: str) -> EngineOptions:
    """ "00", or "00,attention=plain": a rung, and options to change in it. Raises OptionError."""
    number, *changes = text.split(",")
    known = sorted(field.name for field in fields(EngineOptions))
    options = LADDER[number].options
    for change in changes:
        name, _, value = change.partition("=")
        if name not in known:
            raise OptionError(f"{name!r} is not an option; there are {', '.join(known)}")
        options = replace(options, **{name: value})
    return options


# --- from flags to things ------------------------------------------------------------------------------


def model_of(args: argparse.Namespace) -> LanguageModel:
    """The model on its device, converted once for all engines of the command."""
    device = pick_device(args.device)
    return load_model(args.model, seed=args.seed).to(device, default_dtype(device))


def workload_of(args: argparse.Namespace) -> Workload:
    """Raises LabkitError if the model, the device or the policy cannot be had."""
    if getattr(args, "nvtx", False):
        ranges.enable_nvtx()
    model = model_of(args)
    repeats = [args.prompt_repeats[i % len(args.prompt_repeats)] for i in range(args.num_requests)]
    texts = tuple(" ".join([args.prompt] * n) for n in repeats)
    ids = tuple(tuple(model.tokenizer.encode(text)) for text in texts)
    batch_size = min(args.max_batch_size, args.max_active_requests or args.max_batch_size)
    scheduler = SchedulerConfig(
        max_batch_size=batch_size,
        prefill_max_batch_size=args.prefill_max_batch_size or batch_size,
        prefill_max_tokens=args.prefill_max_tokens or max(1, sum(map(len, ids))),
        admission_policy=args.prefill_admission_policy,
        decode_first=args.decode_first,
    )
    return Workload(
        model=model,
        prompts=ids if args.pretok else texts,
        max_new_tokens=args.max_new_tokens,
        stop_on_eos=not args.no_stop_on_eos,
        device=model.device,
        scheduler=scheduler,
        cache=CacheConfig(prefix_cache=not args.no_prefix_cache),
    )


def settings_of(args: argparse.Namespace) -> dict:
    """The flags, for a record."""
    kept = {name: value for name, value in vars(args).items() if name not in ("run", "json")}
    return {name: plain(value) for name, value in kept.items()}


def plain(value: object) -> object:
    return str(value) if isinstance(value, Path | EngineOptions) else value
