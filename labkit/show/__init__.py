"""Figures, and the source of what runs, as a notebook shows them."""

from labkit.show.accesses import draw_accesses
from labkit.show.append_time import draw_append_times
from labkit.show.block_life import draw_block_lives
from labkit.show.block_sizes import draw_block_sizes
from labkit.show.blocks import blocks_slider, draw_blocks
from labkit.show.buckets import draw_buckets, draw_captures
from labkit.show.comparison import draw_comparison
from labkit.show.flights import draw_flights
from labkit.show.host_parts import draw_host_parts, draw_host_shares
from labkit.show.host_time import draw_host_time
from labkit.show.idle import draw_idle
from labkit.show.joins import JoinStep, draw_joins
from labkit.show.ladder import draw_ladder
from labkit.show.lanes import Span, draw_lanes
from labkit.show.launches import draw_launches
from labkit.show.layer_tables import draw_tables
from labkit.show.machines import draw_machines
from labkit.show.measured import draw_measured
from labkit.show.memory import draw_reservation
from labkit.show.occupancy import draw_multiprocessor, draw_occupancy
from labkit.show.packing import draw_packing
from labkit.show.paths import draw_paths
from labkit.show.peers import draw_peers, draw_step_parts
from labkit.show.places import draw_places
from labkit.show.pool_frames import PoolFrame, draw_pool_frames
from labkit.show.positions import draw_positions
from labkit.show.progress import ProgressRow, draw_progress
from labkit.show.prompt_tokens import draw_curves, draw_turns
from labkit.show.requests import draw_requests
from labkit.show.roofline import RooflinePoint, draw_limit, draw_roofline
from labkit.show.rows import draw_rows, draw_step_times
from labkit.show.runs import draw_runs
from labkit.show.schedule import Busy, draw_schedules
from labkit.show.search import draw_search
from labkit.show.sends import draw_sends
from labkit.show.share_sizes import draw_share_sizes
from labkit.show.shared_blocks import draw_shared_blocks
from labkit.show.sliders import sliders
from labkit.show.source import show_diff, show_source
from labkit.show.splits import draw_attention_times, draw_programs, draw_shares
from labkit.show.staircase import draw_staircase
from labkit.show.step_kernels import (
    KernelBox,
    draw_errors,
    draw_layer_kernels,
    draw_step_kernels,
)
from labkit.show.tables import show_thousands, with_thousands
from labkit.show.timeline import draw_timeline
from labkit.show.weights import draw_weights
from labkit.show.write_indices import draw_write_indices

__all__ = [
    "Busy",
    "JoinStep",
    "KernelBox",
    "PoolFrame",
    "ProgressRow",
    "RooflinePoint",
    "Span",
    "blocks_slider",
    "draw_accesses",
    "draw_append_times",
    "draw_attention_times",
    "draw_block_lives",
    "draw_block_sizes",
    "draw_blocks",
    "draw_buckets",
    "draw_captures",
    "draw_comparison",
    "draw_curves",
    "draw_errors",
    "draw_flights",
    "draw_host_parts",
    "draw_host_shares",
    "draw_host_time",
    "draw_idle",
    "draw_joins",
    "draw_ladder",
    "draw_lanes",
    "draw_launches",
    "draw_layer_kernels",
    "draw_limit",
    "draw_machines",
    "draw_measured",
    "draw_multiprocessor",
    "draw_occupancy",
    "draw_packing",
    "draw_paths",
    "draw_peers",
    "draw_places",
    "draw_pool_frames",
    "draw_positions",
    "draw_programs",
    "draw_progress",
    "draw_requests",
    "draw_reservation",
    "draw_roofline",
    "draw_rows",
    "draw_runs",
    "draw_schedules",
    "draw_search",
    "draw_sends",
    "draw_share_sizes",
    "draw_shared_blocks",
    "draw_shares",
    "draw_staircase",
    "draw_step_kernels",
    "draw_step_parts",
    "draw_step_times",
    "draw_tables",
    "draw_timeline",
    "draw_turns",
    "draw_weights",
    "draw_write_indices",
    "show_diff",
    "show_source",
    "show_thousands",
    "sliders",
    "with_thousands",
]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
