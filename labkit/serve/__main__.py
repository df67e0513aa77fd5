"""python -m labkit.serve: an OpenAI-compatible server for one model on one engine."""

import argparse
import contextlib
import ipaddress
import logging
import os
from dataclasses import fields

import uvicorn

from labkit.checks import real_number, whole_number
from labkit.engine import StreamingServer
from labkit.errors import LabkitError
from labkit.ladder import FINISHED, LADDER
from labkit.serve.engine_client import EngineClient
from labkit.serve.engine_process import FRAME_EVERY, EngineSettings, keep_all_there_is
from labkit.serve.http import API_KEY, Server, api_key, app_over
from labkit.serve.running import A_DAY, DrainingServer, logger

MOST_REQUESTS = 1_000_000
KEPT_OPEN = 75  # seconds without a request; clients use a connection again for up to a minute
CAN_HAND_OVER = os.name == "posix"  # a socket, to a process that is started


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m labkit.serve", description=__doc__)
    add = parser.add_argument
    models = "a folder in Hugging Face's format, a GGUF file, smollm2-135m, a hub id, or random:NAME"
    add("--model", required=True, help=models)
    add("--rung", default=FINISHED.number, choices=list(LADDER), help="of the engine: %(default)s")
    add("--host", default="127.0.0.1", help="address to listen at: %(default)s, this machine alone")
    add("--port", type=whole_number(0, 65535), default=8000, help="to listen at: %(default)s")
    add("--served-model-name", help="the model's name for clients; its own without one")
    add("--device", help="cpu or cuda; a GPU if there is one")
    add("--max-batch-size", type=int, help="requests decoded together; fits the device without it")
    add("--max-blocks", type=int, help="blocks of a layer's pool; fits the device without it")
    add(
        "--max-positions", type=int, help="tokens of the longest request; as many as the model has without it"
    )
    add(
        "--max-requests",
        type=whole_number(1, MOST_REQUESTS),
        default=1024,
        help="unfinished answers; more get 429: %(default)s",
    )
    add(
        "--frame-every",
        type=real_number(0, 1e3 * A_DAY),
        default=FRAME_EVERY,
        help="milliseconds at least from one time that tokens go to their streams to the next; first tokens "
        "and ends never wait, and with the engine in a thread nothing does: %(default)s",
    )
    add(
        "--drain",
        type=real_number(0, A_DAY),
        default=30,
        help="seconds that answers have to end at shutdown: %(default)s",
    )
    return parser


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    with contextlib.suppress(ValueError):  # it is a name
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def main() -> None:
    """Serve until a signal comes."""
    args = make_parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = EngineSettings(**{each.name: getattr(args, each.name) for each in fields(EngineSettings)})
    try:
        # Or a wrong key or host, or a port in use, would be noticed when the model is loaded.
        api_key()
        # h11: httptools, which uvicorn would take where it is, sends chunk sizes to clients of HTTP/1.0.
        config = uvicorn.Config("", args.host, args.port, http="h11", log_level="warning", access_log=False)
        config.bind_socket().close()
        with contextlib.closing(engine_server(settings, args.max_requests)) as server:
            serve(server, args, config)
    except LabkitError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:  # while the model is loaded, or raised again when all is closed
        pass


def engine_server(settings: EngineSettings, max_requests: int) -> Server:
    """The engine in a process of its own; in a thread of this one where no socket can be handed to a process,
    as on Windows."""
    if CAN_HAND_OVER:
        return EngineClient.start(settings, max_inflight_requests=max_requests)
    logger.warning("This system hands no socket to a process: the engine is in a thread, which is slower.")
    return StreamingServer(settings.make_engine(), max_inflight_requests=max_requests, tokenize_workers=1)


def serve(engine: Server, args: argparse.Namespace, config: uvicorn.Config) -> None:
    """Serve over HTTP until a signal comes. Raises SystemExit if the engine ends before."""
    if not is_loopback(args.host) and api_key() is None:
        logger.warning(
            "%s can be reached from other machines. Set %s to a key that they must send.", args.host, API_KEY
        )
    config.app = app_over(engine, args.served_model_name)
    config.timeout_keep_alive = KEPT_OPEN
    server = DrainingServer(config, engine, args.drain)
    keep_all_there_is()
    server.run()
    if server.has_lost_engine:
        raise SystemExit("the engine has ended, and so the server does")


if __name__ == "__main__":
    main()
