"""The application for Ray Serve: two replicas on this machine, and what clients notice when one is killed."""

import asyncio
import json
import os
import random
import re
import signal
import socket
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
import yaml
from helpers import GREEDY
from streaming_helpers import TIMEOUT, start, wait_for

from labkit import SamplingParams, load_model

pytest.importorskip("ray")

import ray
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from pydantic import ValidationError
from ray import serve
from ray.exceptions import ActorDiedError
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.exceptions import BackPressureError

from labkit import InferenceEngine
from labkit.paths import ROOT
from labkit.serve import ray_app
from labkit.serve.affinity import PIECE, SLACK, home
from labkit.serve.ray_app import AppArgs, Ingress, PolicyRouter, build

NAME, MODEL = "tiny", "data/tiny-gpt2"
NUMBERS = random.Random(0)
GROUPS = [[NUMBERS.randrange(1, 2048) for _ in range(130)] for _ in range(4)]
SHARED = [group + [NUMBERS.randrange(1, 2048) for _ in range(3)] for group in GROUPS for _ in range(6)]


# --- the arguments and the ingress, without a cluster ----------------------------------------------------


def test_arguments_are_read_as_a_command_line_gives_them():
    args = AppArgs.model_validate({"model": "gpt2", "replicas": "4", "gpus": "1", "max_replicas": "8"})
    assert (args.settings().model, args.settings().device) == ("gpt2", "cuda")
    scale = args.scale()["autoscaling_config"]
    assert (scale["min_replicas"], scale["max_replicas"]) == (4, 8)
    assert AppArgs().scale() == {"num_replicas": 2} and AppArgs().settings().device == "cpu"


def test_all_replicas_together_send_the_frames_that_the_ingresses_carry():
    assert AppArgs(replicas=4, ingresses=2, frames_per_second=3000).frames_of_a_replica() == 1500
    assert AppArgs(replicas=1, max_replicas=6, frames_per_second=3000).frames_of_a_replica() == 500


WRONG = [{"rung": "99"}, {"replicas": 0}, {"modle": "gpt2"}, {"drain": -1}, {"policy": "best"}]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        AppArgs.model_validate(wrong)


def test_the_manifest_starts_this_application():
    (manifest,) = re.findall(
        "```yaml\n(.*?)```", (ROOT / "REPLICAS.md").read_text(encoding="utf-8"), re.DOTALL
    )
    (application,) = yaml.safe_load(yaml.safe_load(manifest)["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == f"{build.__module__}:{build.__name__}"
    assert AppArgs.model_validate(application["args"]).settings().device == "cuda"


def test_streams_take_turns_to_send_and_one_alone_waits_for_a_frame_only(monkeypatch):
    now, waited = [100.0], []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr(ray_app, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(ray_app, "time", SimpleNamespace(monotonic=lambda: now[0]))
    replica = SimpleNamespace(frame_seconds=0.25, next_frame=0.0)
    for time in (100.0, 100.0, 100.25, 200.0):
        now[0] = time
        asyncio.run(ray_app.Replica.turn(replica))
    assert waited == [0.25, 0.5, 0.5, 0.25]


def choosing(policy):
    """A router of that policy behind four ingresses, two replicas, and a function that chooses for a request
    with that beginning and gives Serve's future of it, too."""
    router = object.__new__(PolicyRouter)
    router._use_replica_queue_len_cache = False
    router.initialize_state(policy, 4)
    replicas = [SimpleNamespace(replica_id=ReplicaID(name, DeploymentID("Replica"))) for name in "ab"]

    async def choose(beginning, future):
        pending = SimpleNamespace(
            routing_context=SimpleNamespace(), args=[SimpleNamespace(beginning=beginning)], future=future
        )
        ((replica,), _) = await router.choose_replicas(replicas, pending)
        return replica

    return router, replicas, choose


def test_a_load_is_what_this_ingress_has_sent_and_has_no_end_of():
    router, (a, b), choose = choosing("prefix")

    async def first():
        future = asyncio.get_running_loop().create_future()
        replica = await choose("", future)
        future.cancel()  # before it was sent
        await asyncio.sleep(0)
        return replica

    for _ in range(3):  # and of the ends of what others have sent nobody tells it
        router.on_send_request(a.replica_id)
    assert [asyncio.run(first()), asyncio.run(first())] == [b, b]
    for number in range(4):  # one more than was sent: a request that could not be
        router.on_request_completed(a.replica_id, f"{number}")
    assert [asyncio.run(first()), asyncio.run(first())] == [a, b]
    assert not router.unfinished and not router.chosen


def test_of_requests_that_come_at_once_each_choice_counts_before_any_is_sent():
    router, (a, b), choose = choosing("prefix")
    texts = (f"{number}".rjust(PIECE, "0") for number in range(100))
    beginnings = [text for text in texts if home(text, "ab") == "a"]

    async def burst():
        futures = [asyncio.get_running_loop().create_future() for _ in beginnings]
        order = [await choose(*each) for each in zip(beginnings, futures, strict=True)]
        again = await choose(beginnings[0], futures[0])  # it had no room: no second request
        assert sum(router.unfinished.values()) == len(futures)
        for replica, future in zip([again, *order[1:]], futures, strict=True):
            future.set_result(replica)
            router.on_send_request(replica.replica_id)
        await asyncio.sleep(0)
        return order

    order = asyncio.run(burst())
    assert order.count(a) - order.count(b) in (SLACK, SLACK + 1) and order[: SLACK + 1] == [a] * (SLACK + 1)
    assert sorted(router.unfinished.values()) == sorted([order.count(a), order.count(b)])
    assert not router.chosen


START = {"type": "http.response.start", "status": 200, "headers": []}
PART = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
END = {"type": "http.response.body", "body": b"", "more_body": False}


def answered(*tries):
    """The messages that a client gets where each try gives these messages, or ends with this error."""
    left, sent = list(tries), []

    async def replicas(call):
        assert call.beginning == '"To be"' and "app" not in call.scope
        for item in left.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item

    async def ask():
        parts = iter([b'{"prompt": ', b'"To be"}'])
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "app": object()}

        async def receive():
            part = next(parts)
            return {"type": "http.request", "body": part, "more_body": not part.endswith(b"}")}

        async def send(message):
            sent.append(message)

        handle = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=replicas))
        await Ingress(handle)(scope, receive, send)

    asyncio.run(ask())
    assert not left
    return sent


CUT = AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata())  # the call of a replica that was stopped


@pytest.mark.parametrize("died", [ActorDiedError(), CUT])
def test_a_request_whose_replica_dies_before_it_answers_goes_to_another_one(died):
    assert answered([died], [died], [START, PART, END]) == [START, PART, END]
    start_, body = answered([died], [died], [died])
    assert start_["status"] == 503 and "has died" in json.loads(body["body"])["error"]["message"]


def test_a_stream_that_has_begun_ends_with_an_error():
    *before, last = answered([START, PART, ActorDiedError()])
    assert before == [START, PART] and not last.get("more_body")
    assert "has died" in json.loads(last["body"].removeprefix(b"data: "))["error"]["message"]


def test_too_many_requests_are_told_to_come_back():
    start_, body = answered([BackPressureError(1, 1)])
    assert start_["status"] == 429 and (b"retry-after", b"1") in start_["headers"]
    assert json.loads(body["body"])["error"]["code"] == "server_overloaded"


# --- a cluster of this machine ---------------------------------------------------------------------------


def start_ray():
    """Start Ray on this machine. On a busy one its agents may need more than the 15 s that it gives them, and
    then nothing can be said of the application."""
    for has_another_try in (True, True, False):
        try:
            return ray.init(
                _node_ip_address="127.0.0.1", num_cpus=2, include_dashboard=False, log_to_driver=False
            )
        except Exception as error:
            ray.shutdown()
            if not has_another_try:
                pytest.skip(f"Ray does not start on this machine: {error}")


@pytest.fixture(scope="module")
def app():
    """What `serving` gives, once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # or other tests would hold the replicas up
        yield from serving()


def serving():
    """Two replicas on this machine: a client of their one door, and what each replica says of itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start_ray()
    try:
        serve.start(http_options={"port": port})
        serve.run(build(AppArgs(model=MODEL, served_model_name=NAME)), name="labkit")
        handle = serve.get_deployment_handle("Replica", "labkit")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=TIMEOUT) as client:
            yield SimpleNamespace(
                client=client, stats=lambda: handle.broadcast("stats").results(timeout_s=TIMEOUT)
            )
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="module")
def engine():
    return InferenceEngine(load_model(MODEL), device="cpu")


def asked(prompt, max_tokens, **more):
    return {"model": NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}


@contextmanager
def streaming(app, prompt, max_tokens):
    """The data of a stream's frames, one after another."""
    with app.client.stream("POST", "/completions", json=asked(prompt, max_tokens, stream=True)) as reply:
        yield (line[6:] for line in reply.iter_lines() if line.startswith("data: "))


@pytest.mark.slow
def test_answers_are_one_engines_and_beginnings_are_computed_once(app, engine):
    """One request of each group begins; the others, all at once, follow it to its replica."""
    first, others = SHARED[::6], [prompt for index, prompt in enumerate(SHARED) if index % 6]
    expected = [done.text for done in engine.generate(first, GREEDY)]
    expected += [done.text for done in engine.generate(others, GREEDY)]

    def ask(prompt):
        reply = app.client.post("/completions", json=asked(prompt, GREEDY.max_new_tokens))
        return reply.json()["choices"][0]["text"]

    answers = [ask(prompt) for prompt in first]
    waiting = [start(ask, prompt) for prompt in others]
    assert answers + [each.result(TIMEOUT) for each in waiting] == expected
    reused = [each.engine.counters.reused_tokens for each in app.stats()]
    assert sum(reused) == engine.stats().counters.reused_tokens == len(others) * 128
    assert reused == [len(others) * 64] * 2  # two groups each: the load is shared, too


@pytest.mark.slow
def test_a_client_that_leaves_cancels_its_request(app):
    with streaming(app, [1, 2], 900) as frames:
        next(frames)
        assert sum(each.unfinished for each in app.stats()) == 1
    wait_for(lambda: not sum(each.unfinished for each in app.stats()))


@pytest.mark.slow
def test_a_replica_killed_in_a_flood_ends_its_streams_with_an_error_and_no_other(app, engine):
    """Streams that had begun there end with an error frame; whole answers are made anew by the other one."""
    num_tokens, prompts = 200, [[number + 1, 7] for number in range(20)]
    params = SamplingParams(num_tokens)
    expected = [done.text for done in engine.generate(prompts, params)]
    begun = []

    def read(prompt):
        with streaming(app, prompt, num_tokens) as frames:
            data = [next(frames)]
            begun.append(prompt)
            return data + list(frames)

    def whole(prompt):
        return app.client.post("/completions", json=asked(prompt, num_tokens)).json()["choices"][0]["text"]

    streams = [start(read, prompt) for prompt in prompts[:12]]
    answers = [start(whole, prompt) for prompt in prompts[12:]]
    wait_for(lambda: len(begun) == len(streams))
    dying = max(app.stats(), key=lambda each: each.unfinished)
    assert dying.unfinished
    os.kill(dying.pid, signal.SIGKILL)

    assert [each.result(TIMEOUT) for each in answers] == expected[12:]
    num_cut = 0
    for stream, text in zip(streams, expected[:12], strict=True):
        *data, last = stream.result(TIMEOUT)
        read_so_far = "".join(json.loads(each)["choices"][0]["text"] for each in data)
        if last == "[DONE]":
            assert read_so_far == text
        else:
            num_cut += 1
            assert text.startswith(read_so_far) and "has died" in json.loads(last)["error"]["message"]
    assert 0 < num_cut < len(streams)
    assert whole(prompts[0]) == expected[0]
