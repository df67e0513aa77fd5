"""A server of `labkit.serve` on a free port of this machine, in a thread of the tests, over an engine in
another thread, behind the pair of sockets that leads to it in a process of its own."""

import contextlib
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import openai

from labkit.engine import InferenceEngine
from labkit.serve.engine_client import EngineClient
from labkit.serve.engine_process import FRAME_EVERY, EngineHost
from labkit.serve.http import app_over
from labkit.serve.running import RunningServer

NAME = "small"


class HostedClient(EngineClient):
    """One that keeps its host alive."""

    host: EngineHost


def by_wire(
    engine: InferenceEngine, max_inflight_requests: int | None = 1024, frame_every: float = FRAME_EVERY
) -> HostedClient:
    """A client of an `EngineHost` in a thread."""
    here, there = socket.socketpair()
    host = EngineHost(engine, there, frame_every)
    host.start()
    client = HostedClient(here, max_inflight_requests=max_inflight_requests)
    client.voice = engine.model.voice  # the tests' own tokenizer is no kind that is sent
    client.host = host
    return client


@contextlib.contextmanager
def serving(
    engine: InferenceEngine, drain: float = 30, max_inflight_requests: int | None = 1024
) -> Iterator[SimpleNamespace]:
    """A running server: its url, engine, what serves it, uvicorn's server, and an `openai` client of it."""
    with RunningServer(app_over(by_wire(engine, max_inflight_requests), NAME), drain) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        with client:
            yield SimpleNamespace(
                url=running.url,
                engine=engine,
                streaming=running.app.state.server,
                server=running.server,
                client=client,
                thread=running.thread,
            )
