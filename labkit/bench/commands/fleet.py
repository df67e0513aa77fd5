"""fleet: simulates up to 1,000 replicas, and says what the router before them does and costs.

The service times are those of GPT-2 124M in the H100's records, and the router is the one that runs. Requests
come at 70 % of what the fleet can serve. All figures but the time of a choice are the same for the same seed.
"""

from dataclasses import dataclass

from labkit.bench.commands.arguments import SEED, RecordFlags
from labkit.bench.commands.flags import flag
from labkit.bench.commands.http import said
from labkit.bench.commands.targets import own_target, write_own
from labkit.bench.fleet import Fleet, Service
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record
from labkit.engine.device import pick_device
from labkit.ladder import FINISHED
from labkit.results.fleet import FleetRun

SHARE = 0.7  # of what the fleet can serve
# Replicas, policy, ingresses, whether these have groups of their own, replicas that are lost, requests.
STEADY = (
    (8, "prefix", 1, False, 0, 1_600),
    (8, "round-robin", 1, False, 0, 1_600),
    (8, "prefix", 4, False, 0, 1_600),
    (8, "prefix", 1, False, 1, 1_600),
    (64, "prefix", 1, False, 0, 6_400),
    (64, "round-robin", 1, False, 0, 6_400),
    (64, "prefix", 8, False, 0, 6_400),
    (64, "prefix", 1, False, 8, 6_400),
    (64, "prefix", 8, True, 0, 6_400),
    (1000, "prefix", 1, False, 0, 12_000),
    (1000, "prefix", 125, False, 0, 12_000),
    (1000, "prefix", 125, True, 0, 12_000),
    (1000, "prefix", 125, True, 8, 12_000),
)
GROWING = 4  # replicas
COLD_STARTS = (10.0, 60.0)  # seconds
AFTER = 70.0  # seconds for which requests come, beside a cold start


@dataclass
class Settings(RecordFlags):
    seed: int = flag(0, "requests are drawn with this seed", SEED)


def run(args: Settings) -> None:
    device = pick_device(args.device)
    target = own_target(args, "fleet", device)
    service, samples = Service.recorded(FINISHED.number), list[FleetRun]()
    for replicas, policy, ingresses, in_groups, lost, num in STEADY:
        fleet = Fleet(service, replicas, policy, ingresses, in_groups)
        samples.append(fleet.steady(SHARE, num, args.seed, lost))
        said(f"{samples[-1].replicas} replicas, {samples[-1].policy}, ingresses: {ingresses}")
    for cold_start in COLD_STARTS:
        samples.append(Fleet(service, GROWING).growing(SHARE, cold_start + AFTER, args.seed, cold_start))
        said(samples[-1].event)
    about = args.settings | {"model": "random:gpt2", "share": SHARE}
    record = make_record("fleet", device, measure_bandwidth(device), about, samples)
    print(f"{record.steady_table().to_string()}\n\n{record.growth_table().to_string()}")
    write_own(record, target)
