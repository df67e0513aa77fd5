"""vLLM: what it is asked for and what is read from its answer; a stand-in answers."""

import sys
import types

import pytest
from peer_workloads import arriving, workload

from labkit.bench.peers import vllm
from labkit.bench.peers.generate import as_transformers
from labkit.bench.peers.run import CannotServeError

pytestmark = pytest.mark.slow


@pytest.fixture
def asked(monkeypatch):
    """The settings that the engine was made with, which is installed as it seems."""
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
    return asked


def test_it_runs_where_it_is_installed(asked):
    work = workload()
    run = vllm.vllm_peer(work, as_transformers(work.model))()
    assert run.token_ids == ((5,) * 4, (10,) * 4, (11,) * 4) and run.first_token_seconds is None
    assert (asked["dtype"], asked["max_num_seqs"]) == ("float32", 2)


def test_it_says_what_it_cannot_do(asked, monkeypatch):
    with pytest.raises(CannotServeError, match="no request can join"):
        vllm.vllm_peer(arriving(workload()), None)
    monkeypatch.setattr(vllm, "find_spec", lambda name: None)
    with pytest.raises(CannotServeError, match="not installed here"):
        vllm.vllm_peer(workload(), None)
