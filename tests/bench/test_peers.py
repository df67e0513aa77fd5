"""Peers: that everyone gets the same work, and what is said of one that cannot run."""

import sys
import types
from dataclasses import replace

import pytest
import torch
from helpers import small_model

from labkit import SamplingParams, SchedulerConfig, load_model
from labkit.bench import peers
from labkit.bench.parity import dense_tokens, transformers_model
from labkit.bench.workload import Request, Workload

pytestmark = pytest.mark.slow

PROMPTS = ((5, 6, 7, 8, 9), (10,), (11, 12))


def workload(model=None, prompts=PROMPTS, batch_size=2, new_tokens=4):
    return Workload.alike(
        model or load_model("data/tiny-gpt2"),
        prompts,
        new_tokens,
        device="cpu",
        scheduler=SchedulerConfig(max_batch_size=batch_size, prefill_max_batch_size=batch_size),
    )


def test_everyone_makes_the_same_tokens():
    """Prompts of differing length, in two batches; in float32, where no tie can break either way."""
    work = workload()
    with peers.quiet_transformers():
        reference = peers.as_transformers(work.model)
        made = {
            "labkit 00": peers.labkit_peer(work, "00")(),
            "labkit 10": peers.labkit_peer(work, "10")(),
            "dynamic": peers.transformers_peer(work, reference, None)(),
            "static": peers.transformers_peer(work, reference, "static")(),
        }
    expected = tuple(dense_tokens(work.model, PROMPTS, 4))
    for name, run in made.items():
        assert run.token_ids == expected, name
        assert run.tokens == 12 and 0 < run.first_token_seconds < run.seconds
        assert run.tokens_per_second == 12 / run.seconds


def test_requests_of_unequal_length_get_what_they_asked_for_and_no_more():
    """transformers goes on until the longest of a batch is done: the rest is cut off, and not counted."""
    asked = [SamplingParams(n, stop_on_eos=False) for n in (2, 5, 3)]
    requests = tuple(map(Request, PROMPTS, asked))
    work = replace(workload(), requests=requests)
    with peers.quiet_transformers():
        reference = peers.as_transformers(work.model)
        made = peers.labkit_peer(work, "10")(), peers.transformers_peer(work, reference, None)()
    alike = dense_tokens(work.model, PROMPTS, 5)
    expected = tuple(ids[: params.max_new_tokens] for ids, params in zip(alike, asked, strict=True))
    assert [run.token_ids for run in made] == [expected, expected]
    assert made[1].tokens == 10


def test_transformers_draws_where_one_of_a_batch_does():
    greedy, drawing = SamplingParams(4), SamplingParams(4, temperature=0.8, top_p=0.95, top_k=7)
    assert peers.transformers_sampling([Request("a", greedy)] * 2) == {"do_sample": False}
    assert peers.transformers_sampling([Request("a", greedy), Request("a", drawing)]) == {
        "do_sample": True,
        "temperature": 0.8,
        "top_k": 7,
        "top_p": 0.95,
    }


def test_the_converted_model_is_what_transformers_loads_itself():
    model = load_model("data/tiny-gpt2")
    ours, theirs = peers.as_transformers(model).state_dict(), transformers_model(model).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_model_with_a_head_of_its_own_is_converted_too():
    model = small_model()  # whose head is not its token table
    ids = torch.tensor([PROMPTS[0]])
    logits = peers.as_transformers(model)(ids).logits[0, -1]
    torch.testing.assert_close(logits, model.network.prefill(ids, torch.tensor([5])).last_logits[0])


def test_pads_stand_before_a_prompt():
    ids, mask = peers.left_padded(PROMPTS, torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7, 8, 9], [0, 0, 0, 0, 10], [0, 0, 0, 11, 12]]
    assert mask.tolist() == [[1] * 5, [0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]


def test_runs_are_made_in_turn_after_warm_ups():
    ran = peers.run_peers(workload(), ("00", "10"), rounds=2)
    assert list(ran.runs) == ["labkit 00", "labkit 10", peers.DYNAMIC, peers.STATIC]
    assert all(len(runs) == 4 for runs in ran.runs.values())
    assert all(ran.equal_requests(run) == 3 for runs in ran.runs.values() for run in runs)
    assert not ran.compiled  # transformers compiles on GPUs only


def test_a_peer_that_fails_is_left_out_with_its_reason(monkeypatch):
    def broken(work, reference, cache_implementation):
        if cache_implementation == "static":
            raise RuntimeError("no static cache today\nand a long trace")
        return made_up

    made_up = lambda: peers.PeerRun(1.0, 0.5, ((1,), (2,), (3,)))  # noqa: E731
    monkeypatch.setattr(peers, "transformers_peer", broken)
    ran = peers.run_peers(workload(), ("00",), rounds=1)
    assert ran.left_out[peers.STATIC] == "RuntimeError: no static cache today"
    assert list(ran.runs) == ["labkit 00", peers.DYNAMIC]
    assert ran.equal_requests(ran.runs[peers.DYNAMIC][0]) == 0


def test_vllm_runs_where_it_is_installed(monkeypatch):
    """What it is asked for and what is read from its answer; a stand-in answers."""
    asked = {}

    class LLM:
        def __init__(self, **settings):
            asked.update(settings)

        def generate(self, prompts, params, use_tqdm):
            ids = [prompt["prompt_token_ids"] for prompt in prompts]
            made = [
                types.SimpleNamespace(token_ids=[p[0]] * wish.max_tokens)
                for p, wish in zip(ids, params, strict=True)
            ]
            return [types.SimpleNamespace(outputs=[m]) for m in made]

    module = types.ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, lambda **kw: types.SimpleNamespace(**kw)
    module.__spec__ = types.SimpleNamespace(name="vllm")
    monkeypatch.setitem(sys.modules, "vllm", module)
    ran = peers.run_peers(workload(), ("00",), rounds=1)
    assert peers.VLLM not in ran.left_out
    run = ran.runs[peers.VLLM][0]
    assert run.token_ids == ((5,) * 4, (10,) * 4, (11,) * 4) and run.first_token_seconds is None
    assert (asked["dtype"], asked["max_num_seqs"]) == ("float32", 2)


@pytest.mark.cuda
def test_on_a_gpu_the_static_cache_is_compiled():
    work = Workload.alike(load_model("data/tiny-gpt2"), PROMPTS, 8, device="cuda")
    ran = peers.run_peers(work, ("00", "10"), rounds=1)
    assert ran.compiled or peers.STATIC in ran.left_out
    assert peers.DYNAMIC in ran.runs
