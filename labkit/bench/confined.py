"""A process with bounds on its time and memory, in which one function is called again and again."""

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from labkit.bench.memory import STATM

START = 120  # seconds that a process may take until it is ready
Argument, Result = TypeVar("Argument"), TypeVar("Result")


class FellError(Exception):
    """A call that raised, that took too long, or whose process ended."""


class Confined(Generic[Argument, Result]):
    """Calls of a function in a process of its own, which lives as long as no call breaks it.

    function: a module's, and quiet: what it raises is a `FellError` here. seconds: of wall clock that a call
    may take. memory: bytes of address space that all calls together may take, beyond what the process has
    when it is ready; without a bound where the system knows none. Use as a context, which ends the process.
    """

    def __init__(self, function: Callable[[Argument], Result], seconds: float, memory: int) -> None:
        self.function, self.seconds, self.memory = function, seconds, memory
        self._process: multiprocessing.process.BaseProcess | None = None

    def __call__(self, argument: Argument) -> Result:
        """What the function returns. Raises FellError saying what happened if it returns nothing."""
        if self._process is None:
            self._start()
        self._connection.send(argument)
        result, error = self._answer(self.seconds)
        if error:
            raise FellError(error)
        return result

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that another thread holds
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self.function, self.memory), daemon=True)
        self._process.start()
        theirs.close()
        self._answer(START)

    def _answer(self, seconds: float) -> tuple[Result, str]:
        try:
            if self._connection.poll(seconds):
                return self._connection.recv()
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            self.end()
            raise FellError(f"its process ended with exit status {status}") from None
        self.end()
        raise FellError(f"it took more than {seconds:g} s")

    def end(self) -> None:
        """End the process, whatever it is doing; the next call starts another one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None

    def __enter__(self) -> "Confined[Argument, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def serve(connection: Connection, function: Callable, memory: int) -> None:
    """Answer every argument with what the function returns, and with the error that it raised, in words.

    Ctrl-C is left to the process that asks: it ends this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bound_memory(memory)
    connection.send((None, ""))
    with suppress(EOFError):  # whoever asks has gone
        while True:
            argument = connection.recv()
            try:
                answer = function(argument), ""
            except BaseException as error:  # a panic of a library in Rust is no Exception
                answer = None, f"{type(error).__name__}: {error}"[:1000]
            connection.send(answer)


def bound_memory(more: int) -> None:
    """Let this process take no more than so many bytes of address space beyond what it has."""
    try:
        import resource
    except ImportError:  # Windows
        return
    if STATM.exists():
        now = int(STATM.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + more, resource.getrlimit(resource.RLIMIT_AS)[1]))
