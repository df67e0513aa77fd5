"""Lesson 10: requests that come and go, and the bookkeeping of their steps."""

from collections.abc import Sequence
from types import FrameType

from labkit.bench import dense_tokens, transformers_tokens
from labkit.engine import Completion, InferenceEngine, SamplingParams
from labkit.model import LanguageModel
from labkit.watch import profiled_by

# --- requests that join, end and are cancelled while others decode -------------------------------------


def until_end(token_ids: Sequence[int], eos_token_id: int) -> tuple[int, ...]:
    """The tokens up to the first one that ends the text, that one included; all of them if none does."""
    token_ids = tuple(token_ids)
    if eos_token_id not in token_ids:
        return token_ids
    return token_ids[: token_ids.index(eos_token_id) + 1]


def expected_tokens(
    model: LanguageModel, prompts: Sequence[str], num_tokens: int
) -> dict[str, list[tuple[int, ...]]]:
    """The tokens that each prompt's request has to get, by reference: up to `num_tokens`, but no more after
    the end of the text."""
    ids = [model.tokenizer.encode(prompt) for prompt in prompts]
    eos = model.tokenizer.eos_token_id
    references = {"dense": dense_tokens, "transformers": transformers_tokens}
    return {
        name: [until_end(tokens, eos) for tokens in made(model, ids, num_tokens)]
        for name, made in references.items()
    }


def run_with_cancellations(
    engine: InferenceEngine, prompts: Sequence[str], params: SamplingParams, cancel_in: dict[int, int]
) -> list[Completion]:
    """Serve the prompts, but cancel request `i` after call `cancel_in[i]` of `step`. Returns all completions,
    in the order of the prompts."""
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    done: dict[int, Completion] = {}
    calls = 0
    while engine.has_work:
        outputs = engine.step()
        calls += 1
        done |= {o.request_id: o.completion for o in outputs if o.completion is not None}
        for place, call in cancel_in.items():
            if call == calls and ids[place] not in done:
                done[ids[place]] = engine.cancel(ids[place])
    return [done[request_id] for request_id in ids]


def calls_until_tokens(engine: InferenceEngine, joins_after: int, num_tokens: int = 3) -> list[int]:
    """Let a request join others that decode. Returns, for each of its first tokens, in which call of `step`
    after the request it was handed out."""
    params = SamplingParams(max_new_tokens=24, stop_on_eos=False)
    for _ in range(2):
        engine.add_request([1, 2, 3], params)
    for _ in range(joins_after):
        engine.step()
    joiner = engine.add_request([4, 5], params)
    calls: list[int] = []
    for call in range(1, 24):
        calls += [call for output in engine.step() if output.request_id == joiner]
    return calls[:num_tokens]


# --- how much bookkeeping a step does ------------------------------------------------------------------

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
