"""Looking into a running engine: the only way is `replaced`, and a class says what may be watched."""

from labkit.watch.accesses import KernelRun, record_accesses
from labkit.watch.blocks import LayerTables, layer_tables, record_steps, snapshot
from labkit.watch.capture import CapturedLaunch, LaunchRecorder, ToyGraph, capture, recorded_step
from labkit.watch.counters import Positions, record_paths, record_positions
from labkit.watch.failures import PlantedError, planted_failure
from labkit.watch.flights import Flight, Flights, record_flights
from labkit.watch.launches import count_kernels, device_step_of, layer_of, log_step
from labkit.watch.operators import OperatorCounter, profiled_by
from labkit.watch.replaced import noting, replaced
from labkit.watch.rows import record_rows
from labkit.watch.sends import Sends, record_sends
from labkit.watch.steady import steady_decode, steady_prompts
from labkit.watch.writes import record_inputs, record_writes, steady_write

__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
