"""Two processes of this machine that stay, joined by gloo over its loopback, and prove parts of the reader's.

Each is told its tasks through a pipe, and ends when that is closed. The ranks' own messages go through a
port, and no message makes them run anything.
"""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from torch.distributed import TCPStore

from labkit.errors import OptionError, RankError
from labkit.learn.gates.gate import Report, proven
from labkit.learn.kept import Kept, text_of
from labkit.parallel import TorchRanks

SIZE = 2
SOON = 10.0  # seconds that a rank waits for the other
ANSWERED_IN = 120.0  # seconds that we wait for both
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
PROOF = "In two processes, random layers, and the text of one process."

Trial = Callable[[Any, TorchRanks], None]  # of a part, on each rank; raises BrokenContract


class Pair:
    """The two processes, which are started when they are first asked, and again after one of them failed."""

    def __init__(self) -> None:
        self._ranks: dict[Connection, Any] = {}  # the processes, each by its pipe

    def prove(self, trial: Trial, part: Callable) -> Report:
        """What both ranks say of a part in a trial. It never raises, but for an interrupt."""
        name = part.__name__
        try:
            source = text_of("18", name, part)
        except OptionError as error:
            return Report(False, f"{name}: {error}")
        try:
            answers = self._ask(trial, name, source)
        except (OSError, EOFError):
            self.close()
            late = f"{name}: the two processes did not answer within {ANSWERED_IN:.0f} seconds, or died."
            return Report(False, late)
        except BaseException:
            self.close()
            raise
        if not all(is_alive for _, is_alive in answers):
            self.close()
        # What is wrong is told first, and before that one has waited for the other.
        return min((report for report, _ in answers), key=lambda each: (each.ok, "RankError" in each.text))

    def _ask(self, *task: Any) -> list[tuple[Report, bool]]:
        """Both answers. Raises OSError if one comes too late, and EOFError if a process has died."""
        if not self._ranks:
            self._start()
        for pipe in self._ranks:
            pipe.send(task)
        answers: dict[Connection, tuple[Report, bool]] = {}
        while waiting := self._ranks.keys() - answers.keys():
            ready = wait(waiting, ANSWERED_IN)
            if not ready:
                raise TimeoutError
            answers |= {pipe: pipe.recv() for pipe in ready}
        return [answers[pipe] for pipe in self._ranks]

    def _start(self) -> None:
        spawn = get_context("spawn")
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        together = {
            "WORLD_SIZE": str(SIZE),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is ours, as it is torchrun's
            "GLOO_SOCKET_IFNAME": LOOPBACK,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(SIZE):
            here, there = spawn.Pipe()
            process = spawn.Process(target=serve, args=(there,), daemon=True)
            # Without a main module: a script that asks for a proof would run again in each process.
            no_main = patch.dict(sys.modules, __main__=ModuleType("__main__"))
            with no_main, patch.dict(os.environ, together | {"RANK": str(rank)}):
                process.start()
            there.close()
            self._ranks[here] = process

    def close(self) -> None:
        """End the processes, if there are any."""
        for pipe, process in self._ranks.items():
            process.kill()
            process.join()
            pipe.close()
        self._ranks = {}


# --- in each of the two -------------------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """Be a rank: prove what is told, until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a notebook's interrupt is for the notebook
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for printed in (1, 2):  # by gloo, and by the reader's part
        os.dup2(nowhere, printed)
    ranks, is_alive = TorchRanks("cpu", timeout=SOON), True
    with contextlib.suppress(EOFError):
        while is_alive:
            report = report_of(ranks, *pipe.recv())
            try:
                ranks.check()
            except RankError:  # one has failed in the middle of something: nothing more is done together
                is_alive = False
            pipe.send((report, is_alive))
        pipe.recv()
    ranks.leave()


def report_of(ranks: TorchRanks, trial: Trial, name: str, source: str) -> Report:
    """What this rank says of a part."""
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        path = Path(folder) / "part.py"
        path.write_text(source, encoding="utf-8")
        return proven(name, [lambda: trial(Kept("18", name, path).load(), ranks)], PROOF)
