"""Measuring: cost cards, host time, paired comparisons, latency, the hardware's limit, profiles, records."""

from labkit.bench.comparison import compare, in_turn
from labkit.bench.cost_cards import cost_card
from labkit.bench.host_time import host_engine, time_host_steps
from labkit.bench.limit import (
    copy_bandwidth,
    decode_limit,
    forward_flops,
    matmul_rate,
    on_paper,
    read_bandwidth,
    step_limit,
    time_decode_steps,
)
from labkit.bench.parity import dense_tokens, parity_table, transformers_tokens
from labkit.bench.peers.together import run_peers
from labkit.bench.profile import profile_decode_step
from labkit.bench.workload import Request, Workload, latency_metrics

__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)]


def __dir__() -> list[str]:
    return __all__  # what tab completion shows
