"""The lessons whose part the reader writes, and the gate of each."""

from importlib import import_module

from labkit.learn.gates import Gate

NUMBERS = [f"{number:02}" for number in range(15)]
GATES: dict[str, Gate] = {n: import_module(f"labkit.learn.lesson_{n}.gate").GATE for n in NUMBERS}
