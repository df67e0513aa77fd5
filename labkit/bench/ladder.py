"""All rungs on one workload, in turn."""

from dataclasses import dataclass
from functools import partial

from tqdm import tqdm

from labkit.bench.arguments import (
    RecordFlags,
    WorkloadFlags,
    rounds_flag,
    rungs_flag,
    workload_of,
)
from labkit.bench.comparison import in_turn, run_fresh
from labkit.bench.flags import ByDevice, replaced_default
from labkit.bench.limit import measure_bandwidth
from labkit.bench.loads import ALIKE
from labkit.bench.record import make_record, own_target, write_own
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.results.runs import RungRun

ON_A_CPU = (
    "On a CPU the model's arithmetic is most of a run, and few rungs change that, so expect *cannot tell* of "
    "many: what they take off the host's time shows in `python -m labkit.bench host-time`."
)


@dataclass
class RunLadder(RecordFlags, WorkloadFlags):
    """Run all rungs on one workload in turn, compare each with the one below, and write a record.

    A round runs every rung twice: 00 01 … 01 00.
    """

    load: str = replaced_default(WorkloadFlags, "load", ByDevice(ALIKE, "assistant"))
    num_requests: int = replaced_default(WorkloadFlags, "num_requests", ByDevice(16, 32))
    max_new_tokens: int = replaced_default(WorkloadFlags, "max_new_tokens", ByDevice(64, 32))
    max_batch_size: int = replaced_default(WorkloadFlags, "max_batch_size", ByDevice(8, 16))
    rungs: tuple[str, ...] = rungs_flag()
    rounds: int = rounds_flag(3)

    def run(self) -> None:
        device = pick_device(self.device)
        path = own_target(self, "ladder", device)
        if device.type == "cpu":
            print(ON_A_CPU)
        workload = workload_of(self)
        bandwidth = measure_bandwidth(workload.model.device)
        measures = [partial(run_fresh, workload, LADDER[rung].options) for rung in self.rungs]
        with tqdm(total=2 * self.rounds * len(measures), unit=" runs") as bar:
            made = in_turn(measures, self.rounds, bar.update, self.mark_interrupted, warm_up=1)
        print(f"{workload.model}, {self.num_requests} requests, batches of {self.max_batch_size}")
        samples = [
            RungRun(**vars(run), rung=rung, limit_seconds=workload.limit(bandwidth.copy, run=run).seconds)
            for rung, runs in zip(self.rungs, made, strict=True)
            for run in runs
        ]
        record = make_record("ladder", workload.model.device, bandwidth, self.settings, samples)
        print(record.table(whole_runs=self.load != ALIKE).to_string())
        print(f"Limit at {bandwidth}")
        write_own(record, path)
