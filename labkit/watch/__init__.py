"""Looking into a running engine: the only way is `replaced`, and a class says what may be watched."""

from labkit.watch.accesses import KernelRun, record_accesses
from labkit.watch.blocks import layer_tables, record_steps, snapshot
from labkit.watch.counters import Positions, record_paths, record_positions
from labkit.watch.flights import Flight, Flights, record_flights
from labkit.watch.launches import (
    CapturedLaunch,
    LaunchRecorder,
    ToyGraph,
    capture,
    count_kernels,
    device_step_of,
    layer_of,
    log_step,
    recorded_step,
)
from labkit.watch.operators import OperatorCounter, profiled_by
from labkit.watch.replaced import PlantedError, noting, planted_failure, replaced
from labkit.watch.sends import Sends, record_inputs, record_rows, record_sends, record_writes, steady_write
from labkit.watch.steady import steady_decode, steady_prompts

__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
