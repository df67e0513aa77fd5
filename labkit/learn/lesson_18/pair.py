"""Two processes of this machine that stay, joined by gloo over its loopback, and prove parts of the reader's.

The first one reads tasks from its standard input, a line of JSON each, tells them to the other, and prints a
line with what both found. They end when their input ends. What they run lies in a folder that only this user
can write to: the ranks' messages go through a port, and no message makes them run anything else.
"""

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit.errors import OptionError, RankError
from labkit.learn.gates.gate import Report, proven
from labkit.learn.kept import Kept, text_of
from labkit.parallel import TorchRanks
from labkit.paths import ROOT

SIZE = 2
ANSWER = "answer: "  # begins the one line of a task; gloo prints lines of its own
SOON = 10.0  # seconds that a rank waits for the other
ANSWERED_IN = 120.0  # seconds that we wait for both
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
PROOF = "In two processes, random layers, and the text of one process."

Trial = Callable[[Any, TorchRanks], None]  # of a part, on each rank; raises BrokenContract


class Pair:
    """The two processes, which are started when they are first asked, and again after one of them failed."""

    def __init__(self, module: str) -> None:
        """module: whose `main` is a rank."""
        self.module = module
        self._numbers = itertools.count()
        self._job: subprocess.Popen | None = None
        self._said: queue.Queue[str | None] = queue.Queue()

    @cached_property
    def folder(self) -> tempfile.TemporaryDirectory:
        """Where the parts are, for as long as this process lives."""
        return tempfile.TemporaryDirectory(prefix="labkit-")

    def prove(self, trial: str, part: Callable) -> Report:
        """What both ranks say of a part in a trial, which they know by name. It never raises, but for an
        interrupt."""
        name = part.__name__
        try:
            source = text_of("18", name, part)
        except OptionError as error:
            return Report(False, f"{name}: {error}")
        number = next(self._numbers)
        late = f"{name}: the two processes did not answer within {ANSWERED_IN:.0f} seconds, or died."
        (Path(self.folder.name) / f"part_{number}.py").write_text(source, encoding="utf-8")
        try:
            answer = self._ask({"trial": trial, "name": name, "number": number})
        except BaseException:
            self.close()
            raise
        answer = answer or {"ok": False, "text": late, "is_alive": False}
        if not answer["is_alive"]:
            self.close()
        return Report(answer["ok"], answer["text"])

    def _ask(self, task: dict[str, Any]) -> dict[str, Any] | None:
        job = self._job or self._start()
        try:
            job.stdin.write(json.dumps(task) + "\n")
            job.stdin.flush()
            line = self._said.get(timeout=ANSWERED_IN)
        except (queue.Empty, BrokenPipeError):
            return None
        return None if line is None else json.loads(line)

    def _start(self) -> subprocess.Popen:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={SIZE}"]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {"GLOO_SOCKET_IFNAME": LOOPBACK, **os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
        self._job = job = subprocess.Popen(
            [*torchrun, "-m", self.module, self.folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
            start_new_session=True,  # a notebook's interrupt is for the notebook
        )
        self._said = said = queue.Queue()

        def read() -> None:
            for line in job.stdout:
                if line.startswith(ANSWER):
                    said.put(line.removeprefix(ANSWER))
            said.put(None)

        threading.Thread(target=read, daemon=True).start()
        return job

    def close(self) -> None:
        """End the processes, if there are any."""
        job, self._job = self._job, None
        if job is None:
            return
        job.terminate()  # torchrun ends its ranks
        try:
            job.wait(timeout=10)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
        for end in (job.stdin, job.stdout):
            with contextlib.suppress(OSError):
                end.close()


# --- in each of the two -------------------------------------------------------------------------------------


def serve(trials: dict[str, Trial]) -> None:
    """Be a rank: prove what is told, until the first one's input ends."""
    ranks = TorchRanks("cpu", timeout=SOON)
    is_alive = True
    while is_alive and (task := next_task(ranks)) is not None:
        with contextlib.redirect_stdout(sys.stderr):  # what the reader's part prints
            report = report_of(task, trials, ranks)
        answers = [[report.ok, report.text]]
        try:
            answers.append(swapped(ranks, answers[0]))
            ranks.check()
        except RankError:  # one has failed in the middle of something: nothing more is done together
            is_alive = False
        if ranks.rank == 0:  # what is wrong is told first, and before that one has waited for the other
            ok, text = min(answers, key=lambda answer: (answer[0], "RankError" in answer[1]))
            print(ANSWER + json.dumps({"ok": ok, "text": text, "is_alive": is_alive}), flush=True)
    if is_alive:
        ranks.leave()


def next_task(ranks: TorchRanks) -> dict[str, Any] | None:
    """The next task, told to all; None when there is none."""
    if ranks.rank == 0:
        line = sys.stdin.readline() or "null"
        ranks.tell(line)
    else:
        line = ranks.hear()
    return json.loads(line)


def swapped(ranks: TorchRanks, answer: list[Any]) -> list[Any]:
    """The other rank's answer, a list of whether all is well and a text, for this one's. It comes as a
    message: a rank that waits in a sum meets nobody here."""
    ranks.tell(json.dumps(answer))
    return json.loads(ranks.hear())


def report_of(task: dict[str, Any], trials: dict[str, Trial], ranks: TorchRanks) -> Report:
    """What this rank says of a part."""
    part, path = task["name"], Path(sys.argv[1]) / f"part_{int(task['number'])}.py"
    return proven(part, [lambda: trials[task["trial"]](Kept("18", part, path).load(), ranks)], PROOF)
