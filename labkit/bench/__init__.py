"""Measuring: latency, the hardware's limit, and profiles of a step."""

from labkit.bench.limit import DecodeLimit, copy_bandwidth, decode_limit, forward_flops, matmul_rate
from labkit.bench.metrics import LatencyMetrics, latency_metrics
from labkit.bench.parity import dense_tokens, transformers_tokens
from labkit.bench.profile import StepProfile, profile_decode_step
from labkit.bench.record import load_record
from labkit.bench.steady import steady_decode, time_decode_steps

__all__ = [
    "DecodeLimit",
    "LatencyMetrics",
    "StepProfile",
    "copy_bandwidth",
    "decode_limit",
    "dense_tokens",
    "forward_flops",
    "latency_metrics",
    "load_record",
    "matmul_rate",
    "profile_decode_step",
    "steady_decode",
    "time_decode_steps",
    "transformers_tokens",
]
