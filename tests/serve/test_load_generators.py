"""Load generators that others wrote: a sweep of rates, and many short users of whom one in five leaves."""

import json
import os
import re
import subprocess
import sys

import httpx
import pytest
from helpers import assert_no_block_is_lost, make_engine
from http_server import NAME, serving

from labkit import LADDER, load_model
from labkit.paths import ROOT

pytestmark = pytest.mark.slow
STRATEGIES = 5  # of the sweep: one client, all at once, and constant rates
REQUESTS = 40  # after which each of them ends
USERS = 10
SECONDS = 3  # then users finish what they have begun


@pytest.fixture
def server():
    engine = make_engine(load_model("data/tiny-gpt2"), LADDER["14"].options, max_batch_size=8)
    with serving(engine) as server:
        yield server
    assert_no_block_is_lost(engine)


def run(*command, **settings):
    """Run a module, which must end well."""
    ran = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=900, **settings
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_a_sweep_of_guidellm_has_no_failed_request(server, tmp_path):
    pytest.importorskip("guidellm")
    told = tmp_path / "sweep.json"
    flags = {
        "backend": f"kind=openai_http,target={server.url},model={NAME},request_format=/v1/completions",
        "profile": f"kind=sweep,sweep_size={STRATEGIES}",
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "tokenizer": f"kind=hf_auto,model={ROOT / 'data/tiny-gpt2'}",
        "data": "kind=synthetic_text,prompt_tokens=16,output_tokens=16",
        "output": f"kind=json,path={told}",
    }
    options = [each for name, value in flags.items() for each in (f"--{name}", value)]
    # Two processes: each is started anew for every strategy, and it would be ten.
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    run("guidellm", "run", "--disable-console", *options, env=env)
    totals = [
        each["scheduler_metrics"]["requests_made"] for each in json.loads(told.read_text())["benchmarks"]
    ]
    assert [each["errored"] for each in totals] == [0] * STRATEGIES, totals
    # The server counts them: guidellm may end between its last answer and the count of it.
    counts = httpx.get(f"{server.url}/metrics").text
    assert re.findall(r"^labkit_requests_total(\{.*)$", counts, re.MULTILINE) == [
        f'{{finish_reason="length"}} {STRATEGIES * REQUESTS}.0'
    ]
    assert re.findall(r"^labkit_refused_requests_total.*$", counts, re.MULTILINE) == []


def test_every_user_of_locust_ends_as_it_should(server):
    load = ["-u", str(USERS), "-r", str(USERS), "-t", f"{SECONDS}s", "--stop-timeout", "120", "--json"]
    file = str(ROOT / "tests/soak/locustfile.py")
    kinds = json.loads(run("locust", "-f", file, "--headless", *load, "--host", server.url))
    kinds = {kind["name"]: kind for kind in kinds}
    assert kinds["/v1/models"]["num_requests"] == USERS
    assert kinds["in one piece"]["num_requests"] >= USERS
    assert [kind["name"] for kind in kinds.values() if kind["num_failures"]] == []
