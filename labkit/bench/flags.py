"""A command as a dataclass: each field is a flag. The flags that several commands have, what becomes of them,
and a parser whose errors are one line."""

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar, get_args

import torch

from labkit.bench.limit import Bandwidth, measure_bandwidth
from labkit.bench.loads import ALIKE, LOADS, Asked, make_load
from labkit.bench.record import make_record, own_target, target_file, tell, utf8, write_record
from labkit.bench.workload import Request, Workload
from labkit.checks import real_number, shown, whole_number
from labkit.engine import SamplingParams
from labkit.engine.device import default_dtype, pick_device
from labkit.ladder import FINISHED, LADDER
from labkit.model import LanguageModel, load_model
from labkit.results.comparison import MIN_ROUNDS
from labkit.results.record import Record

# Upper bounds, so that a typo does not start an hour's run.
MOST, MOST_AT_ONCE, LONGEST = 1_000_000, 65_536, 10_000

AT_ONCE = tuple(name for name in LOADS if name != "arrivals")  # `streaming` and `loads` alone serve those

T = TypeVar("T")

# --- from text -----------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What a flag takes: `convert` makes it of a text, or raises ArgumentTypeError; `shown` stands for it."""

    convert: Any
    shown: str


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


COUNT, NUMBER = (Kind(whole_number(least, MOST), "N") for least in (1, 0))
TOKENS = Kind(whole_number(2, MOST), "N")  # of an answer of which something is decoded
BATCH = Kind(whole_number(1, MOST_AT_ONCE), "N")
LENGTH = Kind(whole_number(1, LONGEST), "N")  # of a prompt, in tokens or repeats
BATCH_LIST, LENGTH_LIST = (Kind(list_of(each.convert), "N,N,...") for each in (BATCH, LENGTH))
RATE = Kind(real_number(1e-3, MOST), "R")  # requests per second
MODEL, SEED = Kind(str, "MODEL"), Kind(whole_number(0, 2**64 - 1), "N")
KINDS = {int: COUNT, str: Kind(str, "TEXT"), tuple[int, ...]: BATCH_LIST, Path: Kind(target_file, "FILE")}

# --- a command -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByDevice:
    """A flag's default: one value on a GPU, another on a CPU, which takes a small model and small batches."""

    on_gpu: object
    on_cpu: object

    def __str__(self) -> str:
        return f"{as_written(self.on_gpu)}; on a CPU {as_written(self.on_cpu)}"


def flag(
    default: Any, what: str, kind: Kind | None = None, *, choices: Any = None, also: str | None = None
) -> Any:
    """A field that is a flag; False as default makes a switch.

    what: the sentence of --help, to which the default is added unless it says it. kind: by default that of
    the field's type in `KINDS`. also: another name.
    """
    return field(default=default, metadata={"what": what, "kind": kind, "choices": choices, "also": also})


def replaced_default(flags: type["Flags"], name: str, default: Any, **others: Any) -> Any:
    """The field of a flag that other flags have, too, with a default of its own. others: see `flag`."""
    (found,) = (each for each in flags.flags() if each.name == name)
    return field(default=default, metadata={**found.metadata, **others})


@dataclass
class Flags:
    """What every command shares. Its docstring is its help: a line, and notes.

    kind: of its record. interrupted: whether Ctrl-C ended the measurement early.
    """

    kind: ClassVar[str]
    interrupted: bool = field(default=False, init=False)
    device: str | None = flag(
        None, "the command runs on this device: cpu, cuda, cuda:1, ... (default: the best there is)"
    )
    json: Path | None = flag(None, "the command writes a record to this file (default: none is written)")

    def run(self) -> None:
        """Measure, print, and write a record where one is asked for."""
        raise NotImplementedError

    @classmethod
    def flags(cls) -> list[Field]:
        return [each for each in fields(cls) if each.metadata]

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        for each in cls.flags():
            name, default = f"--{each.name.replace('_', '-')}", each.default
            what, kind, choices, also = each.metadata.values()
            if default is False:
                parser.add_argument(name, action="store_true", help=what)
                continue
            if default is not None and "(default:" not in what:
                what += " (default: %(default)s)"
            names = [name, also] if also else [name]
            kind = kind or next(KINDS[t] for t in (each.type, *get_args(each.type)) if t in KINDS)
            about = {"choices": choices} if choices else {"type": kind.convert, "metavar": kind.shown}
            # A list is text, as on a command line, so that --help shows it as it is written.
            shown = as_written(default) if isinstance(default, tuple) else default
            parser.add_argument(*names, default=shown, help=what, **about)

    @classmethod
    def of(cls, args: argparse.Namespace, device: torch.device) -> "Flags":
        """The values of a command line, on this device. What a CPU took by itself is printed, as it is
        written on a command line."""
        values = {each.name: getattr(args, each.name) for each in cls.flags()}
        taken = []
        for name, value in values.items():
            if isinstance(value, ByDevice):
                values[name] = value.on_cpu if device.type == "cpu" else value.on_gpu
                taken.append(f"--{name.replace('_', '-')} {as_written(values[name])}")
        if taken and device.type == "cpu":
            print(f"On a CPU this command takes {' '.join(taken)}, unless you say otherwise.")
        return cls(**values)

    def mark_interrupted(self) -> None:
        self.interrupted = True

    @contextmanager
    def until_interrupted(self, made: Sized) -> Iterator[None]:
        """A block that measures until it is done or Ctrl-C ends it; the command goes on with what is `made`.

        Raises KeyboardInterrupt if that is nothing.
        """
        try:
            yield
        except KeyboardInterrupt:
            if not len(made):
                raise
            self.mark_interrupted()

    def record(self, samples: Sequence[object], bandwidth: Bandwidth | None = None, **more: object) -> Record:
        """A record of this command. bandwidth: by default measured now. more: settings beside the flags."""
        device = pick_device(self.device)
        settings = {each.name: getattr(self, each.name) for each in self.flags() if each.name != "json"}
        settings |= {"interrupted": True} if self.interrupted else {}
        bandwidth = bandwidth or measure_bandwidth(device)
        return make_record(self.kind, device, bandwidth, settings | more, samples)

    def write(self, record: Record) -> None:
        """Write a record if there is a file for it, and say where it is and what shows it."""
        if self.json:
            write_record(record, self.json)
            tell(record, self.json)

    def record_if_asked(self, *about: Any, **more: object) -> None:
        """Make a record and write it, if there is a file for it. about, more: as `record` takes them."""
        if self.json:
            self.write(self.record(*about, **more))


def as_written(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that refuses with one line in place of all its usage."""

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line."""
        listed = "; --help lists the flags" if message.startswith("unrecognized") else ""
        self.exit(2, f"{self.prog}: error: {message}{listed}\n")


# --- flags that several commands have --------------------------------------------------------------------


@dataclass
class RecordFlags(Flags):
    """The flags of a command that always writes a record."""

    json: Path | None = flag(
        None,
        "the command writes a record to this file (default: one in data/results, named after this machine)",
    )

    @classmethod
    def of(cls, args: argparse.Namespace, device: torch.device) -> Flags:
        """As the others', with the file named. Raises OptionError if nothing can be written there."""
        args.json = args.json or own_target(cls.kind, device)
        return super().of(args, device)


@dataclass
class ModelFlags(Flags):
    """Which model a command measures."""

    model: str = flag(
        ByDevice("random:gpt2", "data/tiny-gpt2"),
        "the command measures this model: a directory, a hub id, or random weights such as random:gpt2",
        MODEL,
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
class ServedFlags(RungFlag):
    """What a command serves over HTTP."""

    model: str = replaced_default(ModelFlags, "model", ByDevice("random:gpt2", "data/tiny-gpt2"))


def rungs_flag(rungs: Sequence[str] = tuple(LADDER)) -> tuple[str, ...]:
    """A field: which rungs run."""
    return flag(tuple(rungs), "these rungs run", Kind(names_of(LADDER), "RUNG,RUNG,..."))


def rounds_flag(default: int) -> int:
    """A field: how often every side runs."""
    what = f"in each of this many rounds every side runs twice; a comparison needs {MIN_ROUNDS}"
    return flag(default, what)


def batch_sizes_flag(default: object, what: str = "are decoded together") -> tuple[int, ...]:
    """A field: of each of these numbers of requests, `what` happens."""
    return flag(default, f"this many requests {what}, one number after another")


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
    num_requests: int = flag(16, "this many requests are served")
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
    return Workload.at_once(model, requests, args.max_batch_size, not args.no_prefix_cache)
