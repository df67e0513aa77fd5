"""Defaults that depend on the machine: on a CPU a benchmark takes a small model and small batches."""

import argparse
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ByDevice:
    """A flag's default: one value on a GPU, another on a CPU."""

    on_gpu: object
    on_cpu: object

    def __str__(self) -> str:
        return f"{as_written(self.on_gpu)}; on a CPU {as_written(self.on_cpu)}"


def as_written(value: object) -> str:
    """A value as it is written on a command line: "1,8,64"."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def take_defaults(args: argparse.Namespace, device: torch.device) -> str:
    """Replace each ByDevice among the flags by its value for this device.

    Returns the flags and values that a CPU took so, as they are written on a command line; "" on a GPU.
    """
    taken = []
    for name, value in list(vars(args).items()):
        if isinstance(value, ByDevice):
            chosen = value.on_cpu if device.type == "cpu" else value.on_gpu
            setattr(args, name, chosen)
            taken.append(f"--{name.replace('_', '-')} {as_written(chosen)}")
    return " ".join(taken) if device.type == "cpu" else ""
