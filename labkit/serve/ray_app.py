"""Several engines behind one door, on Ray Serve: a laptop's cores, a machine's GPUs, or a cluster's.

`serve run labkit.serve.ray_app:app` serves the small shipped model from two replicas, and
`serve run labkit.serve.ray_app:build model=gpt2 replicas=4 gpus=1` another one: the arguments are those of
`AppArgs`. Each replica is labkit's own HTTP application over an engine in a process of its own. It has no
port; Ray's proxy has. Between them stands an ingress, which reads each request's body, because a request is
routed by its prompt.

Needs what `pip install labkit[cluster]` brings.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from grpc.aio import AioRpcError
from pydantic import BaseModel, Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from labkit.engine import EngineStats
from labkit.ladder import FINISHED, LADDER
from labkit.serve.affinity import POLICIES, beginning
from labkit.serve.engine_client import EngineClient
from labkit.serve.engine_process import FRAME_EVERY, EngineSettings
from labkit.serve.errors import ApiError
from labkit.serve.http import LARGEST_BODY, app_over, error_reply
from labkit.serve.replies import frame

TRIES = 3  # replicas that a request is sent to, if they die before its client was told anything
DIED = RayActorError, AioRpcError  # what a call raises whose replica is gone
PASSED = ("type", "http_version", "method", "scheme", "path", "query_string", "headers")  # of ASGI's scope

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class Call:
    """A request on its way to a replica: the part of ASGI's scope that can travel, the body, and the text by
    which it is routed."""

    scope: dict[str, Any]
    body: bytes
    beginning: str


class ReplicaStats(NamedTuple):
    """What a replica says of itself: its id, its process's, its unfinished requests, its engine's state."""

    replica: str
    pid: int
    unfinished: int
    engine: EngineStats


class Replica:
    """labkit's HTTP application over an engine in a process of its own; it opens no port.

    frames_per_second: that it hands the ingress, those of all its streams together. Serve holds no replica
    back that is faster than its ingress, so frames would pile up there; text that waits here for its stream's
    turn travels in one frame.
    """

    def __init__(self, settings: EngineSettings, name: str | None, frames_per_second: float) -> None:
        self.client = EngineClient.start(settings)  # how many requests it has is for Serve to limit
        self.app = app_over(self.client, name)
        self.frame_seconds, self.next_frame = 1 / frames_per_second, 0.0

    async def __call__(self, call: Call) -> AsyncIterator[Message]:
        """The application's messages, as ASGI has them. When the client leaves, Serve cancels this, which
        cancels the client's requests."""
        given: asyncio.Queue[Message] = asyncio.Queue()
        given.put_nowait({"type": "http.request", "body": call.body})  # and nothing else comes
        messages: asyncio.Queue[Any] = asyncio.Queue()

        async def send(message: Any) -> None:
            messages.put_nowait(message)
            if message.get("more_body"):
                await self.turn()

        answering = asyncio.create_task(self.app(call.scope, given.get, send))
        answering.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            answering.cancel()

    async def turn(self) -> None:
        """Wait until a stream that has just sent a frame may send another one."""
        now = time.monotonic()
        self.next_frame = max(now, self.next_frame) + self.frame_seconds
        await asyncio.sleep(self.next_frame - now)

    def check_health(self) -> None:
        """Raise RuntimeError when the engine is gone or broken: Serve then starts another replica."""
        if not self.client.is_serving:
            raise RuntimeError("the engine has stopped")

    def stats(self) -> ReplicaStats:
        """Its state. A handle's `broadcast("stats")` asks every replica."""
        replica = serve.get_replica_context().replica_id.unique_id
        return ReplicaStats(replica, os.getpid(), self.client.num_unfinished, self.client.stats())

    def __del__(self) -> None:
        self.client.close()


class PolicyRouter(RequestRouter):
    """Serve's request router with one of `POLICIES`, which knows what its ingress has sent where.

    A replica's load is what its ingress has chosen it for and has no end of. Serve's own number is what the
    replica said when it last took a request, less those of this ingress that have ended since: with several
    ingresses it never comes down to the truth, and the replica that seems full gets nothing that would tell.
    Of requests that come at once Serve sends none before replicas are chosen for all, so a choice counts.
    Ray's own `PrefixCacheAffinityRouter` needs the packages of `ray[llm]`, and prompts that are texts.
    """

    def initialize_state(self, policy: str, ingresses: int) -> None:
        """Called by Serve with `request_router_kwargs`."""
        self.policy = POLICIES[policy](ingresses)
        self.unfinished: Counter[Any] = Counter()
        self.chosen: dict[Any, Any] = {}  # of requests not sent yet: the replica, by Serve's future of it

    def on_send_request(self, replica_id: Any) -> None:
        """Called by Serve when a request is sent."""
        super().on_send_request(replica_id)
        self.unfinished[replica_id] += 1

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Called by Serve when it has ended, be it refused, and also when it could not be sent."""
        self.one_less(replica_id)

    def one_less(self, replica_id: Any) -> None:
        """The replica has one request less."""
        self.unfinished -= Counter([replica_id])  # which keeps no zeros

    def choose(self, replica_id: Any, sent_to: Any) -> None:
        """Count a request for the replica it is to be sent to, until it is, or has been given up.

        sent_to: its future of the replica that takes it, which may be another one.
        """
        if sent_to in self.chosen:
            self.one_less(self.chosen[sent_to])
        else:
            sent_to.add_done_callback(lambda _: self.one_less(self.chosen.pop(sent_to)))
        self.chosen[sent_to] = replica_id
        self.unfinished[replica_id] += 1

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are to be asked whether they have room."""
        if not candidate_replicas or pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # between two rounds in which none had room
        replicas = {each.replica_id.unique_id: each for each in candidate_replicas}
        loads = {name: self.unfinished[each.replica_id] for name, each in replicas.items()}
        ranked = self.policy.rank(pending_request.args[0].beginning, loads)
        self.choose(replicas[ranked[0]].replica_id, pending_request.future)
        return [[replicas[name]] for name in ranked]


class Ingress:
    """An ASGI application that hands each request to a replica, and the replica's messages to the client.

    If a replica dies, those of its requests whose clients were told nothing yet are sent to another one.
    Streams that had begun end with an error.
    """

    def __init__(self, replicas: Any) -> None:
        # by gRPC: an object of Ray for each frame would cost both processes three times as much
        self.replicas = replicas.options(stream=True, _by_reference=False)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request, or the application's start and end."""
        if scope["type"] == "lifespan":
            return await begin_and_end(receive, send)
        body = await read_body(receive)
        call = Call({name: scope[name] for name in PASSED if name in scope}, body, beginning(body))
        for left in reversed(range(TRIES)):
            has_begun = False
            try:
                async for message in self.replicas.remote(call):
                    has_begun = True
                    await send(message)
                return
            except (*DIED, BackPressureError, DeploymentUnavailableError) as error:
                if has_begun:  # a stream
                    told = frame(refusal(error).body)
                    return await send({"type": "http.response.body", "body": told})
                if not left or not isinstance(error, DIED):
                    return await error_reply(refusal(error))(scope, receive, send)


def refusal(error: Exception) -> ApiError:
    """What a client is told when no replica answers."""
    if isinstance(error, BackPressureError):
        return ApiError(429, "too many requests wait already: ask again", code="server_overloaded")
    if isinstance(error, DeploymentUnavailableError):
        return ApiError(503, "there is no replica: ask again")
    return ApiError(503, "the replica that answered this request has died: ask again")


async def read_body(receive: Receive) -> bytes:
    """A request's body; of one that is too large only so much that the replica sees it."""
    body, more = b"", True
    while more and len(body) <= LARGEST_BODY:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def begin_and_end(receive: Receive, send: Send) -> None:
    """Say that nothing is to be done when the application starts, and when it ends."""
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


class AppArgs(BaseModel, extra="forbid"):
    """What `serve run labkit.serve.ray_app:build` and the `args` of a Serve config may say."""

    model: str = "data/tiny-gpt2"  # a folder in Hugging Face's format, a hub id, or random:NAME
    rung: Literal[tuple(LADDER)] = FINISHED.number  # type: ignore[valid-type]
    served_model_name: str | None = None  # for clients; the model's own without it
    max_batch_size: int | None = Field(default=None, ge=1)  # without a value, these three fit the device
    max_blocks: int | None = Field(default=None, ge=1)  # of a layer's pool
    max_positions: int | None = Field(default=None, ge=1)  # tokens of the longest request
    replicas: int = Field(default=2, ge=1)  # with max_replicas the fewest
    max_replicas: int | None = Field(default=None, ge=1)  # under load; without it their number is fixed
    target_requests: float = Field(default=32, gt=0)  # in each replica; with more, replicas are added
    gpus: float = Field(default=0, ge=0)  # of each replica; 0: it runs on the CPU
    cpus: float = Field(default=1, ge=0)  # of each replica, which is also its number of threads
    policy: Literal["prefix", "round-robin"] = "prefix"  # by which requests are routed: `POLICIES`
    ingresses: int = Field(default=1, ge=1)  # each knows only what it has sent to the replicas itself
    frame_every: float = Field(default=FRAME_EVERY, ge=0)  # milliseconds: see `EngineHost`
    frames_per_second: float = Field(default=2500, gt=0)  # of streams, that one ingress carries
    max_ongoing_requests: int = Field(default=256, ge=1)  # in each replica; more wait in the ingress
    max_queued_requests: int = Field(default=1024, ge=-1)  # that wait there; more get 429; -1: no limit
    drain: float = Field(default=30, ge=0)  # seconds that answers have to end when a replica is stopped

    def settings(self) -> EngineSettings:
        """The engine of each replica."""
        names = {each.name for each in fields(EngineSettings)}
        return EngineSettings(**self.model_dump(include=names), device="cuda" if self.gpus else "cpu")

    def scale(self) -> dict[str, Any]:
        """How many replicas there are, as Serve has it."""
        if self.max_replicas is None:
            return {"num_replicas": self.replicas}
        return {
            "autoscaling_config": {
                "min_replicas": self.replicas,
                "max_replicas": self.max_replicas,
                "target_ongoing_requests": self.target_requests,
            }
        }

    def frames_of_a_replica(self) -> float:
        """The frames per second that each replica may send."""
        return self.frames_per_second * self.ingresses / max(self.replicas, self.max_replicas or 0)


def make_ingress() -> Ingress:
    """The ingress of the application in whose replica this is called."""
    return Ingress(serve.get_deployment_handle("Replica", serve.get_replica_context().app_name))


def build(args: AppArgs) -> serve.Application:
    """A Serve application: replicas of an engine behind an ingress that routes by load and prefix."""
    replica = serve.deployment(
        Replica,
        **args.scale(),
        ray_actor_options={"num_cpus": args.cpus, "num_gpus": args.gpus},
        max_ongoing_requests=args.max_ongoing_requests,
        max_queued_requests=args.max_queued_requests,
        graceful_shutdown_timeout_s=args.drain,
        health_check_period_s=2,
        request_router_config={
            "request_router_class": PolicyRouter,
            "request_router_kwargs": {"policy": args.policy, "ingresses": args.ingresses},
        },
    )
    # By default one, which knows what every replica has seen. It asks for no core of its own.
    ingress = serve.deployment(
        serve.ingress(make_ingress)(),
        name="Ingress",
        num_replicas=args.ingresses,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=100_000,
        graceful_shutdown_timeout_s=args.drain,
    )
    engine = args.settings(), args.served_model_name, args.frames_of_a_replica()
    return ingress.bind(replica.bind(*engine))


app = build(AppArgs())
