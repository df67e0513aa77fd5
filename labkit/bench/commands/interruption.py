"""Ctrl-C in a command: what is complete is shown and recorded, and the record is marked."""

import argparse
from collections.abc import Iterator, Sized
from contextlib import contextmanager


def mark_interrupted(args: argparse.Namespace) -> None:
    """Note that Ctrl-C ended the measurement early: among the settings of a record `"interrupted": true`."""
    args.interrupted = True


@contextmanager
def until_interrupted(args: argparse.Namespace, made: Sized) -> Iterator[None]:
    """A block that measures until it is done or Ctrl-C ends it; the command then goes on with what is `made`.

    Raises KeyboardInterrupt if that is nothing.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not len(made):
            raise
        mark_interrupted(args)
