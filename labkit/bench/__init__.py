"""Measuring: cost cards, host time, paired comparisons, latency, the hardware's limit, profiles, records."""

from labkit.bench.append_time import AppendTime, time_appends
from labkit.bench.comparison import Comparison, Interval, compare, in_turn, speedup_interval
from labkit.bench.cost_cards import CostCard, compare_cards, cost_card, count_operators
from labkit.bench.host_time import HostTime, host_engine, slope_us, time_host_steps
from labkit.bench.limit import (
    DecodeLimit,
    copy_bandwidth,
    decode_limit,
    forward_flops,
    matmul_rate,
    workload_limit,
)
from labkit.bench.metrics import LatencyMetrics, latency_metrics
from labkit.bench.parity import dense_tokens, parity_table, transformers_tokens
from labkit.bench.peers import PeerRun, PeerRuns, as_transformers, run_peers
from labkit.bench.profile import StepProfile, profile_decode_step
from labkit.bench.published import headline, noise_floor, published_figures, series_drift
from labkit.bench.record import load_record, load_records, results
from labkit.bench.recorded import (
    host_comparison,
    host_times,
    ladder_comparison,
    ladder_limit,
    ladder_rates,
)
from labkit.bench.step_time import time_decode_steps
from labkit.bench.workload import Run, Workload

__all__ = [
    "AppendTime",
    "Comparison",
    "CostCard",
    "DecodeLimit",
    "HostTime",
    "Interval",
    "LatencyMetrics",
    "PeerRun",
    "PeerRuns",
    "Run",
    "StepProfile",
    "Workload",
    "as_transformers",
    "compare",
    "compare_cards",
    "copy_bandwidth",
    "cost_card",
    "count_operators",
    "decode_limit",
    "dense_tokens",
    "forward_flops",
    "headline",
    "host_comparison",
    "host_engine",
    "host_times",
    "in_turn",
    "ladder_comparison",
    "ladder_limit",
    "ladder_rates",
    "latency_metrics",
    "load_record",
    "load_records",
    "matmul_rate",
    "noise_floor",
    "parity_table",
    "profile_decode_step",
    "published_figures",
    "results",
    "run_peers",
    "series_drift",
    "slope_us",
    "speedup_interval",
    "time_appends",
    "time_decode_steps",
    "time_host_steps",
    "transformers_tokens",
    "workload_limit",
]
