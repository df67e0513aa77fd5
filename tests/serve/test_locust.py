"""A load generator that others wrote: many short users, of whom one in five leaves in the middle."""

import json
import subprocess
import sys

import pytest
from helpers import assert_no_block_is_lost, make_engine
from http_server import serving

from labkit import LADDER, load_model
from labkit.paths import ROOT

pytestmark = pytest.mark.slow
USERS = 10
SECONDS = 3  # then users finish what they have begun


def test_every_user_of_locust_ends_as_it_should():
    engine = make_engine(load_model("data/tiny-gpt2"), LADDER["14"].options, max_batch_size=8)
    locust = [sys.executable, "-m", "locust", "-f", str(ROOT / "tests/soak/locustfile.py"), "--headless"]
    load = ["-u", str(USERS), "-r", str(USERS), "-t", f"{SECONDS}s", "--stop-timeout", "120", "--json"]
    with serving(engine) as server:
        run = subprocess.run(
            [*locust, *load, "--host", server.url], capture_output=True, text=True, timeout=600
        )
        assert run.returncode == 0, run.stderr
        kinds = {kind["name"]: kind for kind in json.loads(run.stdout)}
        assert kinds["/v1/models"]["num_requests"] == USERS
        assert kinds["in one piece"]["num_requests"] >= USERS
        assert [kind["name"] for kind in kinds.values() if kind["num_failures"]] == []
    assert_no_block_is_lost(engine)
