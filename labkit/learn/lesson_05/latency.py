"""Lesson 05: what a recorded streaming run says of throughput, of waiting, and of the queue."""

from statistics import median

import numpy as np

from labkit.results import Run


def run_figures(run: Run) -> dict[str, float]:
    """The three figures that write-up 064 states, of one recorded run."""
    return {
        "throughput": round(run.throughput, 2),
        "TPOT p99": round(1e3 * float(np.percentile(run.latency.tpot, 99)), 2),
        "ITL p99": round(float(np.percentile(run.gaps_us, 99)) / 1e3, 2),
    }


def queue_figures(run: Run) -> dict[str, float | str]:
    """Where the requests of a recorded run waited: medians in milliseconds, and a step's mean."""
    return {
        "TTFT p50 (ms)": round(1e3 * median(run.latency.ttft), 1),
        "of it queue wait (ms)": round(1e3 * median(run.latency.queue_wait), 1),
        "TPOT p50 (ms)": round(1e3 * median(run.latency.tpot), 2),
        "a step (ms)": round(1e-3 * run.step_us, 2),
        "requests in a step": run.decoded_tokens / run.decode_steps,
        "paths": ", ".join(run.append_paths),
    }
