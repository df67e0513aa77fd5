"""The compiled loop: the engine's tokens, a step that the compiler takes whole, and what it refuses."""

import pytest
import torch
from peer_workloads import ALMOST_GREEDY, DRAWS, LEVEL, RAGGED, arriving, expected, with_params, workload

from labkit import SamplingParams
from labkit.bench.peers.compiled_loop import DecodeStep, compiled_peer, run_compiled
from labkit.bench.peers.others import PaddedHead
from labkit.bench.peers.run import CannotServeError

pytestmark = pytest.mark.slow


def test_a_padded_head_gives_the_logits_of_the_tokens_alone():
    weight, hidden = torch.randn(67, 8), torch.randn(2, 3, 8)
    head = PaddedHead(weight)
    assert head.weight.shape == (128, 8) and not head.weight.requires_grad
    torch.testing.assert_close(head(hidden), hidden @ weight.T)
    assert PaddedHead(torch.randn(64, 8)).weight.shape == (64, 8)


def test_the_compiler_takes_the_step_whole():
    """Traced as on a GPU, but run as it is."""
    work = workload(LEVEL, 6)
    for params in (work.requests[0].params, ALMOST_GREEDY):
        decode = DecodeStep(work.model.network, 2, work.longest, params)
        traced = torch.compile(decode, backend="eager", fullgraph=True, dynamic=False)
        assert run_compiled(work, decode, traced).token_ids == expected(work)
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda: workload(RAGGED[:2]), "one length, and these differ"),
        (lambda: with_params(workload(LEVEL), *map(SamplingParams, (2, 3, 2, 2))), "one length"),
        (lambda: arriving(workload(LEVEL)), "no request can join"),
        (lambda: workload(LEVEL[:3]), "3 requests make no full ones of 2"),
        (lambda: with_params(workload(LEVEL), *[DRAWS] * 3, ALMOST_GREEDY), "one rule"),
    ],
)
def test_what_it_cannot_serve_it_refuses(work, said):
    with pytest.raises(CannotServeError, match=said):
        compiled_peer(work())


@pytest.mark.cuda
@pytest.mark.parametrize("params", [SamplingParams(6, stop_on_eos=False), ALMOST_GREEDY])
def test_on_a_gpu_its_step_is_compiled(params):
    from dataclasses import replace

    work = with_params(workload(LEVEL), *[params] * 4)
    on_gpu = replace(work, model=work.model.to(torch.device("cuda"), torch.float32), device="cuda")
    peer = compiled_peer(on_gpu)
    assert [peer().token_ids for _ in range(3)] == [expected(workload(LEVEL, 6))] * 3
    torch.compiler.reset()
