"""A load generator that others wrote: a sweep from one client to as many as there are, and rates between."""

import json
import os
import subprocess
import sys

import pytest
from helpers import assert_no_block_is_lost, make_engine
from http_server import NAME, serving

from labkit import LADDER, load_model
from labkit.paths import ROOT

pytest.importorskip("guidellm")

pytestmark = pytest.mark.slow
STRATEGIES = 5  # of the sweep: one client, all at once, and constant rates
REQUESTS = 40  # after which each of them ends


def test_a_sweep_of_guidellm_has_no_failed_request(tmp_path):
    engine = make_engine(load_model("data/tiny-gpt2"), LADDER["14"].options, max_batch_size=8)
    told = tmp_path / "sweep.json"
    with serving(engine) as server:
        flags = {
            "backend": f"kind=openai_http,target={server.url},model={NAME},request_format=/v1/completions",
            "profile": f"kind=sweep,sweep_size={STRATEGIES}",
            "constraint": f"kind=max_requests,count={REQUESTS}",
            "tokenizer": f"kind=hf_auto,model={ROOT / 'data/tiny-gpt2'}",
            "data": "kind=synthetic_text,prompt_tokens=16,output_tokens=16",
            "output": f"kind=json,path={told}",
        }
        options = [each for name, value in flags.items() for each in (f"--{name}", value)]
        command = [sys.executable, "-m", "guidellm", "run", "--disable-console", *options]
        # Two processes: each is started anew for every strategy, and it would be ten.
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "2"}
        run = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
        assert run.returncode == 0, run.stderr[-3000:]
    totals = [each["metrics"]["request_totals"] for each in json.loads(told.read_text())["benchmarks"]]
    assert len(totals) == STRATEGIES
    assert all(each["successful"] >= REQUESTS and each["errored"] == 0 for each in totals), totals
    assert_no_block_is_lost(engine)
