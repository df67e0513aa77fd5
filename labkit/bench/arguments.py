"""Flags that several commands share, and what becomes of them."""

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

from labkit.bench.flags import ByDevice, Flags, Kind, flag, replaced_default
from labkit.bench.loads import ALIKE, LOADS, Asked, make_load
from labkit.bench.record import target_file, utf8
from labkit.bench.workload import Request, Workload
from labkit.checks import real_number, shown, whole_number
from labkit.engine import CacheConfig, SamplingParams, SchedulerConfig
from labkit.engine.device import default_dtype, pick_device
from labkit.ladder import FINISHED, LADDER
from labkit.model import LanguageModel, load_model
from labkit.results.comparison import MIN_ROUNDS

# Upper bounds, so that a typo does not start an hour's run.
MOST, MOST_AT_ONCE, LONGEST = 1_000_000, 65_536, 10_000

AT_ONCE = tuple(name for name in LOADS if name != "arrivals")  # `streaming` and `loads` alone serve those

T = TypeVar("T")

# --- from text -----------------------------------------------------------------------------------------


def list_of(convert: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """The type of a flag that takes numbers separated by commas, each of the type `convert`."""
    return lambda text: tuple(map(convert, text.split(",")))


def names_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """The type of a flag that takes names separated by commas, of those that are known, each once."""

    def convert(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {shown(unknown[0])}; there are {', '.join(known)}")
        if len(set(names)) < len(names):
            raise argparse.ArgumentTypeError(f"{shown(text)} names one twice")
        return names

    return convert


# --- what a flag takes -----------------------------------------------------------------------------------

COUNT, NUMBER = (Kind(whole_number(least, MOST), "N") for least in (1, 0))
TOKENS = Kind(whole_number(2, MOST), "N")  # of an answer of which something is decoded
BATCH = Kind(whole_number(1, MOST_AT_ONCE), "N")
LENGTH = Kind(whole_number(1, LONGEST), "N")  # of a prompt, in tokens or repeats
BATCH_LIST, LENGTH_LIST = (Kind(list_of(each.convert), "N,N,...") for each in (BATCH, LENGTH))
RATE = Kind(real_number(1e-3, MOST), "R")  # requests per second
FILE, SEED = Kind(target_file, "FILE"), Kind(whole_number(0, 2**64 - 1), "N")

# --- flags that several commands have --------------------------------------------------------------------


@dataclass
class DeviceFlags(Flags):
    """On what a command runs, and where its record goes."""

    device: str | None = flag(
        None, "the command runs on this device: cpu, cuda, cuda:1, ... (default: the best there is)"
    )
    json: Path | None = flag(
        None, "the command writes a record to this file (default: none is written)", FILE
    )


@dataclass
class RecordFlags(DeviceFlags):
    """The same for a command that always writes a record."""

    json: Path | None = flag(
        None,
        "the command writes a record to this file (default: one in data/results, named after this machine)",
        FILE,
    )


@dataclass
class ModelFlags(DeviceFlags):
    """Which model a command measures."""

    model: str = flag(
        ByDevice("random:gpt2", "data/tiny-gpt2"),
        "the command measures this model: a directory, a hub id, or random weights such as random:gpt2",
        Kind(str, "MODEL"),
        also="--hf-model-id",
    )
    seed: int = flag(0, "random weights are drawn with this seed", SEED)


@dataclass
class RungFlag(Flags):
    """Which rung runs, by default the finished engine's."""

    rung: str = flag(
        FINISHED.number, "this rung runs (default: the finished engine's, %(default)s)", choices=tuple(LADDER)
    )


@dataclass
class ServedFlags(RungFlag, DeviceFlags):
    """What a command serves over HTTP."""

    model: str = replaced_default(ModelFlags, "model", ByDevice("random:gpt2", "data/tiny-gpt2"))


def rungs_flag(rungs: Sequence[str] = tuple(LADDER)) -> tuple[str, ...]:
    """A field: which rungs run."""
    return flag(tuple(rungs), "these rungs run", Kind(names_of(LADDER), "RUNG,RUNG,..."))


def rounds_flag(default: int) -> int:
    """A field: how often every side runs."""
    what = f"in each of this many rounds every side runs twice; a comparison needs {MIN_ROUNDS}"
    return flag(default, what, COUNT)


def batch_sizes_flag(default: object, what: str = "are decoded together") -> tuple[int, ...]:
    """A field: of each of these numbers of requests, `what` happens."""
    return flag(default, f"this many requests {what}, one number after another", BATCH_LIST)


@dataclass
class WorkloadFlags(ModelFlags):
    """A workload: its requests, and the order in which they are served."""

    prompt: str = flag("Hello", "every prompt is made of this text", Kind(utf8, "TEXT"))
    prompt_repeats: tuple[int, ...] = flag(
        (1,), "requests in turn repeat the prompt this many times; 1,4 makes half of them longer", LENGTH_LIST
    )
    load: str = flag(
        ALIKE,
        "requests are alike, as the other flags say, or changed as labkit/bench/loads.py says, with random "
        "prompts where their lengths differ",
        choices=AT_ONCE,
    )
    pretok: bool = flag(False, "prompts are tokenized before the clock starts")
    num_requests: int = flag(16, "this many requests are served", COUNT)
    max_new_tokens: int = flag(64, "a request makes at most this many tokens", TOKENS)
    no_stop_on_eos: bool = flag(False, "every request makes all its tokens")
    max_batch_size: int = flag(8, "at most this many requests are decoded together", BATCH)
    no_prefix_cache: bool = flag(False, "every prompt is computed, even one just computed")


# --- from flags to things ------------------------------------------------------------------------------


def model_of(args: ModelFlags) -> LanguageModel:
    """The model that the flags name, on its device and in its dtype, once for all engines of the command."""
    device = pick_device(args.device)
    return load_model(args.model, seed=args.seed).to(device, default_dtype(device))


def workload_of(args: WorkloadFlags, rate: float | None = None) -> Workload:
    """The workload that the flags describe. rate: as `Asked` has it. Raises LabkitError if model, device or
    load cannot be had."""
    model = model_of(args)
    params = SamplingParams(args.max_new_tokens, stop_on_eos=not args.no_stop_on_eos)

    @cache
    def repeated(times: int) -> Request:  # of each length there is one text
        text = " ".join([args.prompt] * times)
        return Request(tuple(model.tokenizer.encode(text)) if args.pretok else text, params)

    alike = tuple(map(repeated, islice(cycle(args.prompt_repeats), args.num_requests)))
    requests = make_load(args.load, Asked(alike, model.config, args.seed, rate))
    encode = cache(model.tokenizer.encode)
    prompts = [encode(r.prompt) if isinstance(r.prompt, str) else r.prompt for r in requests]
    scheduler = SchedulerConfig(
        max_batch_size=args.max_batch_size,
        prefill_max_batch_size=args.max_batch_size,
        prefill_max_tokens=max(1, sum(map(len, prompts))),
    )
    of_cache = CacheConfig(prefix_cache=not args.no_prefix_cache)
    return Workload(model, requests, model.device, scheduler, of_cache)
