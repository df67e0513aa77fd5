"""Measuring: latency, the hardware's limit, and profiles of a step."""

from labkit.bench.limit import DecodeLimit, copy_bandwidth, decode_limit, forward_flops, matmul_rate
from labkit.bench.metrics import LatencyMetrics, latency_metrics
from labkit.bench.profile import StepProfile, profile_decode_step, steady_engine

__all__ = [
    "DecodeLimit",
    "LatencyMetrics",
    "StepProfile",
    "copy_bandwidth",
    "decode_limit",
    "forward_flops",
    "latency_metrics",
    "matmul_rate",
    "profile_decode_step",
    "steady_engine",
]
