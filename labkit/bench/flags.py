"""A command as a dataclass: each field is a flag. And a parser whose errors are one line."""

import argparse
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from labkit.options import EngineOptions


@dataclass(frozen=True)
class ByDevice:
    """A flag's default: one value on a GPU, another on a CPU, which takes a small model and small batches."""

    on_gpu: object
    on_cpu: object

    def __str__(self) -> str:
        return f"{as_written(self.on_gpu)}; on a CPU {as_written(self.on_cpu)}"


class Kind(NamedTuple):
    """What a flag takes: `convert` makes it of a text, or raises ArgumentTypeError; `shown` stands for it."""

    convert: Any
    shown: str


TEXT = Kind(str, "TEXT")


def flag(default: Any, what: str, kind: Kind = TEXT, *, choices: Any = None, also: str | None = None) -> Any:
    """A field that is a flag; False as default makes a switch.

    what: the sentence of --help, to which the default is added unless it says it. also: another name.
    """
    return field(default=default, metadata={"what": what, "kind": kind, "choices": choices, "also": also})


def replaced_default(flags: type["Flags"], name: str, default: Any, **others: Any) -> Any:
    """The field of a flag that other flags have, too, with a default of its own. others: see `flag`."""
    (found,) = (each for each in flags.flags() if each.name == name)
    return field(default=default, metadata={**found.metadata, **others})


@dataclass
class Flags:
    """What every command shares. Its docstring is its help: a line, and notes.

    interrupted: whether Ctrl-C ended the measurement early.
    """

    interrupted: bool = field(default=False, init=False)

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
            about = {"choices": choices} if choices else {"type": kind.convert, "metavar": kind.shown}
            # A list is text, as on a command line, so that --help shows it as it is written.
            shown = as_written(default) if isinstance(default, tuple) else default
            parser.add_argument(*names, default=shown, help=what, **about)

    @classmethod
    def of(cls, args: argparse.Namespace, device: torch.device) -> tuple["Flags", str]:
        """The values of a command line, on this device; and the flags that a CPU took by itself, as they are
        written on a command line."""
        values = {each.name: getattr(args, each.name) for each in cls.flags()}
        taken = []
        for name, value in values.items():
            if isinstance(value, ByDevice):
                values[name] = value.on_cpu if device.type == "cpu" else value.on_gpu
                taken.append(f"--{name.replace('_', '-')} {as_written(values[name])}")
        return cls(**values), " ".join(taken) if device.type == "cpu" else ""

    @property
    def settings(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in self.flags() if each.name != "json"}
        marked = {"interrupted": True} if self.interrupted else {}
        plain = {n: str(v) if isinstance(v, Path | EngineOptions) else v for n, v in values.items()}
        return plain | marked

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


def as_written(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that refuses with one line in place of all its usage."""

    def parse_known_args(self, *args: Any, **kwargs: Any) -> tuple[Any, list[str]]:
        """What argparse makes of the arguments; a command itself refuses flags that it does not have, for it
        alone knows those that it has."""
        known, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line."""
        listed = "; --help lists the flags" if message.startswith("unrecognized") else ""
        self.exit(2, f"{self.prog}: error: {message}{listed}\n")
