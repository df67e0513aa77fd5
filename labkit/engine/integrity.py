"""Proofs that what an engine knows of its requests fits together."""

from collections.abc import Collection

from labkit.engine.overlap import ReadAtOnce, ReadOneBehind
from labkit.engine.scheduler import OnlineScheduler


def check_queues(unfinished: Collection[int], scheduler: OnlineScheduler) -> None:
    """Prove that each unfinished request, by id, waits, joins or runs. Raises AssertionError otherwise."""
    queued = [request.request_id for request in scheduler.requests]
    if sorted(queued) != sorted(unfinished):
        raise AssertionError(f"unfinished requests are {sorted(unfinished)}, but {queued} are queued")


def check_lengths(scheduler: OnlineScheduler, readback: ReadAtOnce | ReadOneBehind) -> None:
    """Prove that of a running request all tokens but the last are in the cache, and with a step in flight
    those that it may make. Raises AssertionError naming the request of which this is not so."""
    step = getattr(readback, "in_flight", None)
    in_flight = set(step.sessions) if step else set()
    # A reader's own part may keep its step elsewhere: then a token more may be in flight to anybody.
    is_somewhere = readback.is_ahead and not step
    for request, session in scheduler.running.items():
        least = request.num_tokens - 1
        if step and session in in_flight:
            least += step.num_ahead(request)
        if not request.output_token_ids or not least <= session.num_tokens <= least + is_somewhere:
            raise AssertionError(
                f"request {request.request_id} runs with {len(request.output_token_ids)} new tokens and "
                f"{session.num_tokens} tokens in the cache, expected {least}"
            )
