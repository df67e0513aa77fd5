"""Damaged files and what reads them: it does, or it refuses them with an error of labkit's."""

import inspect
import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from labkit import paths
from labkit.bench.memory import resident_bytes
from labkit.bench.mutations import Files, mutate, write
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.errors import LabkitError
from labkit.model import load_model
from labkit.model.small import save_small_checkpoint
from labkit.results.files import KINDS, kind_of, load_file
from labkit.results.published import PUBLISHED, published_figures
from labkit.threads import use_one_thread

LONGEST_MESSAGE = 1000  # characters; a line
RECORD = "record.json"


@dataclass(frozen=True)
class Target:
    """Something that reads files: what sound files are, drawn from `dice`, and how they are read."""

    share: int  # of all cases, beside those of the others
    sound: Callable[[random.Random], dict[str, bytes]]
    read: Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """Damaged files by the numbers that they are drawn from."""

    seed: int
    number: int


@dataclass(frozen=True)
class Judged:
    """What became of a case. error: the name of the error that refused it; None for files that were read.

    memory: bytes that the process had in memory behind it, or 0 where the system does not say.
    """

    target: str
    error: str | None
    cpu_seconds: float
    memory: int


def judge(case: Case) -> Judged:
    """Have the case's files read. Raises what no reader should: an error that is not labkit's, or that takes
    more than a line to say what is wrong."""
    use_one_thread()  # in a process of its own, too
    name, files, _ = draw(case)
    error = None
    with tempfile.TemporaryDirectory() as folder:
        write(files, Path(folder))
        started = time.process_time()
        try:
            TARGETS[name].read(Path(folder))
        except LabkitError as refusal:
            error = type(refusal).__name__
            check_message(str(refusal))
        seconds = time.process_time() - started
    return Judged(name, error, seconds, resident_bytes())


def check_message(message: str) -> None:
    """Raises AssertionError for a message that is longer than a line, or that no terminal can show."""
    message.encode()
    assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters: {message[:200]}"
    assert "\n" not in message, f"a message of several lines: {message}"


def draw(case: Case) -> tuple[str, Files, str]:
    """The name of a case's target, its files, and what was done to them."""
    dice = random.Random(f"{case.seed} {case.number}")
    name = dice.choices(list(TARGETS), [target.share for target in TARGETS.values()])[0]
    return name, *mutate(TARGETS[name].sound(dice), dice)


def name_of(case: Case) -> str:
    """The name of a case's target."""
    return draw(case)[0]


def describe(case: Case) -> str:
    """What a case is, in words."""
    name, _, what = draw(case)
    return f"{name}: {what}"


# --- checkpoints -----------------------------------------------------------------------------------------


@cache
def checkpoint_files() -> dict[str, bytes]:
    """The files of a small checkpoint, with both kinds of tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        save_small_checkpoint(Path(folder))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def checkpoint_without(*names: str) -> dict[str, bytes]:
    """A small checkpoint with one kind of tokenizer."""
    return {name: raw for name, raw in checkpoint_files().items() if name not in names}


def read_checkpoint(folder: Path) -> None:
    """Load the model and have it go on with a text: what is loaded runs."""
    engine = InferenceEngine(
        load_model(folder),
        device="cpu",
        dtype=torch.float32,
        cache=CacheConfig(4),
        scheduler=SchedulerConfig(max_batch_size=1),
    )
    engine.generate(["The"], SamplingParams(max_new_tokens=2))


# --- records ---------------------------------------------------------------------------------------------


@cache
def records() -> tuple[bytes, ...]:
    """The smallest record of each kind, with its first sample and its last: of engines side by side, two."""
    found = sorted(paths.RESULTS.glob("*.json"), key=lambda path: path.stat().st_size, reverse=True)
    smallest = {kind: path for path in found if (kind := kind_of(path)) in KINDS}
    read = [load_file(path) for path in smallest.values()]
    ends = [one.samples[:: max(1, len(one.samples) - 1)] for one in read]
    return tuple(
        json.dumps(replace(one, samples=two).to_dict()).encode() for one, two in zip(read, ends, strict=True)
    )


def sound_record(dice: random.Random) -> dict[str, bytes]:
    """A record of the project's, two samples of it."""
    return {RECORD: dice.choice(records())}


def sound_figures(dice: random.Random) -> dict[str, bytes]:
    """The published figures of two posts."""
    return {RECORD: json.dumps(dice.sample(json.loads(PUBLISHED.read_bytes()), 2)).encode()}


def read_record(folder: Path) -> None:
    """Read a record, ask it for all that it is known by, and write it again."""
    record = load_file(folder / RECORD)
    for name, member in inspect.getmembers(type(record)):
        if isinstance(member, property):
            getattr(record, name)
    json.dumps(record.to_dict())


TARGETS = {
    "checkpoint": Target(4, lambda dice: checkpoint_without("vocab.json", "merges.txt"), read_checkpoint),
    "checkpoint with vocab.json": Target(
        1, lambda dice: checkpoint_without("tokenizer.json"), read_checkpoint
    ),
    "record": Target(4, sound_record, read_record),
    "published figures": Target(1, sound_figures, lambda folder: published_figures(folder / RECORD)),
}
