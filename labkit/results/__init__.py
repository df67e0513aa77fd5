"""Reading: recorded runs and published figures, as one class per kind, and the tables made from them."""

from labkit.results.comparison import (
    Comparison,
    amdahl,
    paths_in_words,
    speedup,
    speedup_interval,
)
from labkit.results.cost_cards import (
    CostCard,
    CostCardRecord,
    DeviceCounts,
    HostCounts,
    counts_table,
)
from labkit.results.files import (
    KINDS,
    GpuTests,
    host_time_lines,
    ladder_lines,
    load,
    load_all,
    load_gpu_tests,
)
from labkit.results.host_time import HostTime, HostTimeRecord
from labkit.results.kernels import AppendTime, AttentionTime
from labkit.results.peers import LoadsRecord, PeersRecord
from labkit.results.profiles import DeviceTimeRecord, ProfiledStep, StepProfile, TracedStep
from labkit.results.published import headline, noise_floor, published_figures, series_drift
from labkit.results.record import Host, Record
from labkit.results.runs import LatencyMetrics, Run, RunsRecord

__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
