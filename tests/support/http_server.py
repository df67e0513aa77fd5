"""A server of `labkit.serve` on a free port of this machine, in a thread of the tests."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import openai
import uvicorn

from labkit.engine import InferenceEngine
from labkit.serve import make_app
from labkit.serve.__main__ import DrainingServer

NAME = "small"


@contextlib.contextmanager
def serving(engine: InferenceEngine, drain: float = 30, **options: object) -> Iterator[SimpleNamespace]:
    """A running server: its url, engine, StreamingServer and uvicorn server, and an `openai` client of it."""
    app = make_app(engine, name=NAME, **options)
    config = uvicorn.Config(app, "127.0.0.1", 0, log_level="critical", access_log=False)
    server = DrainingServer(config, app.state.server, drain)
    has_begun = threading.Event()
    begin = server.startup

    async def startup(*args: object, **kwargs: object) -> None:
        await begin(*args, **kwargs)
        has_begun.set()

    server.startup = startup
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    assert has_begun.wait(60)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    try:
        yield SimpleNamespace(
            url=url, engine=engine, streaming=app.state.server, server=server, client=client, thread=thread
        )
    finally:
        client.close()
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
