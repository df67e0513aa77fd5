"""A server that runs: in the foreground until a signal comes, or beside other work on a free port."""

import logging
import math
import threading
from contextlib import AbstractContextManager
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from labkit.checks import is_number, require, shown
from labkit.errors import OptionError
from labkit.serve.http import Server

logger = logging.getLogger("labkit.serve")
SECONDS_TO_LEAVE = 5
A_DAY = 86_400  # seconds


class DrainingServer(uvicorn.Server):
    """Asked to stop, it takes no new connection and lets open answers end for `drain` seconds; those that it
    then cuts short end with an error. A second signal does so at once. It stops by itself when there is no
    engine any more."""

    def __init__(self, config: uvicorn.Config, server: Server, drain: float) -> None:
        super().__init__(config)
        # A client that does not read what it is told last is not waited for either.
        config.timeout_graceful_shutdown = math.ceil(drain) + SECONDS_TO_LEAVE
        self._streaming, self._drain = server, drain
        self.has_begun = threading.Event()
        self.has_lost_engine = self._is_hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come. At a third Ctrl-C uvicorn drops open answers without a word."""
        if self.should_exit and not self._is_hurried:
            self._is_hurried = True
            threading.Thread(target=self._streaming.close, daemon=True).start()
        else:
            super().handle_exit(sig, frame)

    async def startup(self, *args: object, **kwargs: object) -> None:
        try:
            await super().startup(*args, **kwargs)  # type: ignore[arg-type]
            host, port, *_ = self.servers[0].sockets[0].getsockname()
            logger.info("%r at http://%s:%d", self._streaming, f"[{host}]" if ":" in host else host, port)
        finally:
            self.has_begun.set()

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop; asked ten times a second."""
        self.has_lost_engine = not self._streaming.is_serving
        return await super().on_tick(counter) or self.has_lost_engine

    async def shutdown(self, *args: object, **kwargs: object) -> None:
        """End all connections."""
        if num_unfinished := self._streaming.num_unfinished:
            logger.warning("%d answers are unfinished: they have %g s to end", num_unfinished, self._drain)
        timer = threading.Timer(self._drain, self._streaming.close)
        timer.daemon = True
        timer.start()
        try:
            await super().shutdown(*args, **kwargs)  # type: ignore[arg-type]
        finally:
            timer.cancel()


class RunningServer(AbstractContextManager["RunningServer"]):
    """An application of `make_app` that answers at `url`, in a thread of this process: on a free port of this
    machine, which no other machine can reach. Close it, or use it in a `with` block.

    drain: seconds that open answers have to end when it is closed.
    Raises OptionError for another application, for one whose server is closed, and for a drain that is none.
    """

    def __init__(self, app: Starlette, drain: float = 30) -> None:
        serving = getattr(getattr(app, "state", None), "server", None)
        if serving is None or not serving.is_serving:
            raise OptionError(f"app must be an application of make_app that was not closed, not {shown(app)}")
        is_time = is_number(drain) and 0 <= drain <= A_DAY
        require(OptionError, "drain", drain, is_time, f"a number of seconds from 0 to {A_DAY:,}")
        config = uvicorn.Config(app, "127.0.0.1", 0, http="h11", log_level="critical", access_log=False)
        self.app, self.server = app, DrainingServer(config, serving, drain)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        self.server.has_begun.wait()
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def __repr__(self) -> str:
        return f"RunningServer({self.url}, {'serving' if self.thread.is_alive() else 'closed'})"

    def close(self) -> None:
        """Stop listening, and wait until every answer has ended."""
        self.server.should_exit = True
        self.thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()
