"""Lesson 20: the solutions of its exercises say what the package does."""

import random

from labkit import bench
from labkit.bench.limit import decode_weight_bytes, workload_limit
from labkit.learn.lesson_20.exercises import draw_workload, limit_bytes


def test_the_formula_is_the_package_s_limit():
    rng = random.Random(1)
    gpt2 = bench.on_paper()
    weights = decode_weight_bytes(gpt2)
    workloads = [(65, 64, 2, 11), *(tuple(draw_workload(rng).values())[2:] for _ in range(50))]
    for workload in workloads:
        requests, size, prompt, new = workload
        limit = workload_limit(gpt2, [prompt] * requests, [new] * requests, size, 1.0)
        ours = limit_bytes(weights, 2 * gpt2.config.kv_values_per_token, *workload)
        assert ours == limit.num_bytes
