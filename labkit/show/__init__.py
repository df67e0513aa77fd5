"""What a notebook draws."""

from labkit.show.blocks import blocks_slider, draw_blocks, record_steps, snapshot
from labkit.show.comparison import draw_before_after, draw_comparison
from labkit.show.host_time import draw_host_time
from labkit.show.ladder import draw_ladder
from labkit.show.memory import draw_reservation
from labkit.show.requests import draw_requests
from labkit.show.roofline import RooflinePoint, draw_limit, draw_roofline
from labkit.show.source import show_diff, show_source
from labkit.show.timeline import draw_timeline

__all__ = [
    "RooflinePoint",
    "blocks_slider",
    "draw_before_after",
    "draw_blocks",
    "draw_comparison",
    "draw_host_time",
    "draw_ladder",
    "draw_limit",
    "draw_requests",
    "draw_reservation",
    "draw_roofline",
    "draw_timeline",
    "record_steps",
    "show_diff",
    "show_source",
    "snapshot",
]
