"""All layers in one kernel on a GPU: at full size, in graphs, and two at once. Here programs wait for each
other at barriers, which they do not in the interpreter."""

import pytest
import torch
from attention_append_cases import NOBODY
from persistent_cases import TOLERANCE, Case, assert_is_all_layers, copied, make_case

from labkit.kernels.eight_bit import LIMITS
from labkit.kernels.persistent_layers import decode_layers_persistent_triton, make_barrier

pytestmark = [pytest.mark.slow, pytest.mark.cuda]

FULL = {"L": 4, "H": 12, "D": 64, "inner": 3072, "num_tables": 1, "device": "cuda", "room": 1024}
CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("length, block_size", [(1000, 16), (63, 64)])
def test_it_is_all_layers_at_full_size(length: int, block_size: int, dtype: torch.dtype):
    before = make_case(length, block_size=block_size, dtype=dtype, **FULL)
    after, barrier = copied(before), make_barrier(CUDA)
    out = decode_layers_persistent_triton(*after, barrier)
    tolerance = 1e-4 if dtype == torch.float32 else TOLERANCE[dtype]
    assert_is_all_layers(out, after, before, tolerance)
    assert barrier.tolist() == [0]


@pytest.mark.parametrize("kept", LIMITS, ids=str)
def test_it_is_all_layers_over_a_cache_in_eight_bits(kept: torch.dtype):
    before = make_case(1000, block_size=64, dtype=torch.float16, kept=kept, **FULL)
    after = copied(before)
    out = decode_layers_persistent_triton(*after, make_barrier(CUDA))
    assert_is_all_layers(out, after, before, tolerance=0.1)


def test_the_order_in_which_programs_arrive_changes_no_bit():
    case, barrier = make_case(1000, dtype=torch.float16, **FULL), make_barrier(CUDA)
    expected = decode_layers_persistent_triton(*copied(case), barrier)
    for _ in range(100):
        assert torch.equal(decode_layers_persistent_triton(*copied(case), barrier), expected)


def graph_of(case: Case, x: torch.Tensor, barrier: torch.Tensor) -> torch.cuda.CUDAGraph:
    """A graph of the kernel from x on; what it leaves is in the case.

    It remembers addresses: who replays it keeps all three.
    """
    decode_layers_persistent_triton(*case, barrier)  # compiled
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.x.copy_(x)
        decode_layers_persistent_triton(*case, barrier)
    return graph


def test_graphs_of_it_in_two_streams_at_once_wait_for_nothing_that_does_not_come():
    """Both ask for all multiprocessors. If each had some of them, both would wait for ever."""
    engines, kept = [], []
    for seed in range(2):
        x = make_case(512, dtype=torch.float16, seed=seed, **FULL).x
        case = make_case(512, dtype=torch.float16, **FULL)
        barrier = make_barrier(CUDA)
        graph = graph_of(case, x, barrier)
        graph.replay()
        engines.append((graph, case.x, case.x.clone(), torch.cuda.Stream()))
        kept.append((case, x, barrier))
    torch.cuda.synchronize()
    for _ in range(300):
        for graph, _, _, stream in engines:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for _, out, expected, _ in engines:
        assert torch.equal(out, expected)
    assert not torch.equal(engines[0][1], engines[1][1])


def test_a_graph_follows_what_lies_in_its_tensors():
    """Captured while the row pads; replayed as its context grows."""
    before = make_case(300, dtype=torch.float32, **FULL)
    case, lens = copied(before), before.context_lens.clone()
    before.context_lens.fill_(NOBODY)
    barrier = make_barrier(CUDA)
    graph = graph_of(case._replace(context_lens=before.context_lens), before.x, barrier)
    assert torch.equal(case.k_cache.nan_to_num(), before.k_cache.nan_to_num())  # nothing is stored
    before.context_lens.copy_(lens)
    graph.replay()
    assert_is_all_layers(case.x, case, before, tolerance=1e-4)
