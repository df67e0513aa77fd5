"""A server of `labkit.serve` on a free port of this machine, in a thread of the tests."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import openai

from labkit.engine import InferenceEngine
from labkit.serve import RunningServer, make_app

NAME = "small"


@contextlib.contextmanager
def serving(engine: InferenceEngine, drain: float = 30, **options: object) -> Iterator[SimpleNamespace]:
    """A running server: its url, engine, StreamingServer and uvicorn server, and an `openai` client of it."""
    with RunningServer(make_app(engine, name=NAME, **options), drain) as running:
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
