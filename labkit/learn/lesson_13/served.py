"""Lesson 13: steps of an engine that serves, counted."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor

from labkit.bench.limit import on_paper
from labkit.bench.loads import Asked, make_load
from labkit.bench.workload import Request as LoadRequest
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.packed_prefill import PackedPrefill
from labkit.engine.request import Request
from labkit.model import GPT2Config, LanguageModel
from labkit.model.checkpoint import random_network
from labkit.model.tokenizer import WordTokenizer
from labkit.show import JoinStep
from labkit.watch import LaunchRecorder, noting, replaced
from labkit.watch.operators import storage

# --- the steps of an engine, counted: what each computes, and who gets a token in it -------------------

NO_PREFIXES = CacheConfig(prefix_cache=False)

# Prompts and answers of a client: token ids, and how many new tokens it asks for
Asks = Sequence[tuple[Sequence[int], int]]


@dataclass
class Step:
    """One call of `step`: the rows that it sent through the layers, and the ids of requests that did this or
    that in it."""

    prompt_rows: int = 0  # pads among them
    pads: int = 0
    decode_rows: int = 0
    ran: frozenset[int] = frozenset()  # before it
    got: frozenset[int] = frozenset()  # a token
    prompts: frozenset[int] = frozenset()  # had prompt tokens computed (rung 13), or all by its end (below)

    @property
    def rows(self) -> int:
        return self.prompt_rows + self.decode_rows


@dataclass(frozen=True)
class Served:
    """All steps of a run."""

    steps: list[Step]

    @property
    def prompt_rows(self) -> int:
        return sum(step.prompt_rows for step in self.steps)

    @property
    def pads(self) -> int:
        return sum(step.pads for step in self.steps)

    @property
    def num_stalled(self) -> int:
        """Steps in which some ran and none of them got a token."""
        return sum(bool(step.ran) and not step.ran & step.got for step in self.steps)

    @property
    def num_joins(self) -> int:
        """Steps that computed prompt tokens: in a GPU's words, launches of a prefill."""
        return sum(step.prompt_rows > 0 for step in self.steps)

    @property
    def longest_wait(self) -> int:
        """Rows that went through the layers between two tokens of one request, at most."""
        since: dict[int, int] = {}
        longest = 0
        for step in self.steps:
            for request_id in step.ran:
                since[request_id] = since.get(request_id, 0) + step.rows
            for request_id in step.ran & step.got:
                longest = max(longest, since.pop(request_id))
        return longest


def serve(engine: InferenceEngine, asked: Asks, later: Mapping[int, Asks] | None = None) -> Served:
    """Serve greedy requests, and others that come before a step of some number, and count each step; not the
    rows that a graph on a GPU may pad it with."""
    steps: list[Step] = []
    running: frozenset[int] = frozenset()
    later = dict(later or {})
    with counted(engine, steps):
        add_all(engine, asked)
        while engine.has_work or later:
            add_all(engine, later.pop(len(steps), ()))
            step = Step(ran=running)
            steps.append(step)
            outputs = engine.step()
            step.got = frozenset(output.request_id for output in outputs)
            if step.prompt_rows and not step.prompts:
                step.prompts = step.got - step.ran
            running = (running | step.got) - {output.request_id for output in outputs if output.completion}
    return Served(steps)


def add_all(engine: InferenceEngine, asked: Asks) -> None:
    """Add greedy requests, which end at their limit alone."""
    for prompt, num_new in asked:
        engine.add_request(list(prompt), SamplingParams(num_new, stop_on_eos=False))


@contextmanager
def counted(engine: InferenceEngine, steps: list[Step]) -> Iterator[None]:
    """Inside the block, the rows of each launch are added to the last of the steps."""

    def on_prefill(input_ids: Tensor, lengths: Tensor, *_: object) -> None:
        steps[-1].prompt_rows += input_ids.numel()
        steps[-1].pads += input_ids.numel() - int(lengths.sum())

    def on_chunk(chunk: PackedChunk, joining: Mapping[Request, object], *_: object) -> None:
        steps[-1].prompt_rows += len(chunk.token_ids)
        ends = zip(joining, chunk.starts, chunk.starts[1:], strict=False)
        steps[-1].prompts = frozenset(r.request_id for r, first, end in ends if end > first)

    def on_decode(requests: Sequence[Request], *_: object) -> None:
        steps[-1].decode_rows += len(requests)

    with ExitStack() as stack:
        stack.enter_context(replaced(engine.decode_step, "start", noting(on_decode)))
        if isinstance(engine.prefill, PackedPrefill):
            stack.enter_context(replaced(engine.prefill.chunk_step, "launch", noting(on_chunk)))
        else:
            stack.enter_context(replaced(engine.model.network, "prefill", noting(on_prefill)))
        yield


# --- shown -------------------------------------------------------------------------------------------------


def join_steps(served: Served, first: int = 0) -> list[JoinStep]:
    """The steps from number `first` on, as they are drawn."""
    steps = []
    for step in served.steps[first:]:
        states = dict.fromkeys(step.prompts, "prompt")
        states |= {request_id: "token" if request_id in step.got else "waits" for request_id in step.ran}
        steps.append(JoinStep(step.rows, states))
    return steps


# --- loads -------------------------------------------------------------------------------------------------


def quick_model() -> LanguageModel:
    """One layer of random weights with GPT-2's positions: what is counted does not depend on the numbers."""
    config = GPT2Config(
        vocab_size=97, n_positions=1024, n_embd=16, n_layer=1, n_head=1, tie_word_embeddings=False
    )
    return LanguageModel("random:one layer", random_network(config, seed=0), WordTokenizer(97, 66))


def ragged_load(model: LanguageModel, num_requests: int, max_new_tokens: int) -> Asks:
    """The load `ragged` of the benchmarks: lognormal prompts, 100 tokens in the median."""
    alike = LoadRequest((1,), SamplingParams(max_new_tokens, stop_on_eos=False))
    requests = make_load("ragged", Asked((alike,) * num_requests, model.config))
    return [(request.prompt, request.params.max_new_tokens) for request in requests]


# --- what a join costs ---------------------------------------------------------------------------------


def num_stores(engine: InferenceEngine, asked: Asks) -> int:
    """How often keys and values are stored when these requests join an empty engine together: by operators of
    the padded prefill, or by calls of the packed one's kernel, whose plain twin has several."""
    add_all(engine, [(prompt, 1) for prompt, _ in asked])  # with one new token each: no decode step stores
    if isinstance(engine.prefill, PackedPrefill):
        attention = engine.prefill.chunk_step.device_step.attention
        calls: list[tuple] = []
        with replaced(attention, "kv_append", noting(lambda *stored, **_: calls.append(stored))):
            engine.step()
        return len(calls)
    with LaunchRecorder() as seen:
        engine.step()
    caches = {storage(engine.kv_manager.k_cache), storage(engine.kv_manager.v_cache)}
    in_place = [launch for launch in seen.launches if launch.name.endswith("_")]
    return sum(storage(launch.args[0]) in caches for launch in in_place)


def weight_megabytes(chunk_sizes: Sequence[int], prompt_len: int) -> dict[int, tuple[int, float]]:
    """Chunks of a prompt by their size, and megabytes of GPT-2's matrices in half precision that are read per
    prompt token: each chunk reads all of them, the head among them."""
    config = on_paper().config
    matrices = 2 * (config.num_matrix_weights + config.vocab_size * config.hidden_size)
    chunks = {size: -(-prompt_len // size) for size in chunk_sizes}
    return {size: (count, count * matrices / prompt_len / 1e6) for size, count in chunks.items()}
