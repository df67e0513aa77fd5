"""Lesson 10: how much bookkeeping a step does."""

from types import FrameType

from labkit.engine import InferenceEngine
from labkit.watch import profiled_by

# Folders of the functions that `bookkeeping_calls` counts.
BOOKKEEPING = ("labkit/engine/", "labkit/kvcache/")


def bookkeeping_calls(engine: InferenceEngine) -> int:
    """How many Python functions of the engine and its cache one step calls, without comprehensions."""
    calls = 0

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            calls += any(part in frame.f_code.co_filename for part in BOOKKEEPING)

    with profiled_by(on_event):
        engine.step()
    return calls
