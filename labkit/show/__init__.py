"""Figures, and the source of what runs, as a notebook shows them."""

from labkit.show.accesses import draw_accesses, draw_places
from labkit.show.bars import draw_finale, draw_host_shares, draw_measured, draw_staircase
from labkit.show.blocks import blocks_slider, draw_blocks
from labkit.show.cells import (
    PoolFrame,
    draw_pool_frames,
    draw_shared_blocks,
    draw_tables,
    draw_weights,
    draw_write_indices,
)
from labkit.show.comparison import draw_comparison, draw_gains, draw_ladder
from labkit.show.grids import draw_flights, draw_paths, draw_positions, draw_rows, draw_sends
from labkit.show.kernels import (
    KernelBox,
    draw_layer_kernels,
    draw_multiprocessor,
    draw_occupancy,
    draw_search,
    draw_shards,
    draw_shares,
)
from labkit.show.lanes import (
    JoinStep,
    Stretch,
    draw_block_lives,
    draw_joins,
    draw_lanes,
    draw_launches,
    draw_packing,
    draw_request,
    draw_schedules,
    draw_timeline,
)
from labkit.show.lines import draw_block_sizes, draw_buckets, draw_curves
from labkit.show.sliders import sliders
from labkit.show.source import show_diff, show_source
from labkit.show.tables import show_thousands, with_thousands

__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
