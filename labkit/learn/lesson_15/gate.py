"""Lesson 15: what each of the reader's kernels must compute, alone and in a running engine.

A kernel is first called on random shapes, the smallest ones first, then it takes the place of the package's
on rung 14, in small random Llamas, and every token must be the one that transformers makes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import chain, zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.bench.parity import transformers_tokens
from labkit.checks import shown
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.parts import Part
from labkit.engine.step.lanes import NUM_LANES, Lane, LanedDeviceStep
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import paged_attention_append_plain
from labkit.kernels.fused_linear import row_statistics
from labkit.ladder import FINISHED
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven
from labkit.learn.lesson_09.proofs import check_dots, check_precision, device
from labkit.learn.lesson_15.draws import (
    NUM_DRAWS,
    Heads,
    Product,
    check_numbers,
    drawn_heads,
    group_lookalikes,
    products,
    rms_lookalikes,
    rotation_lookalikes,
)
from labkit.learn.lesson_15.steps import MyAttention, ReadersNormLinear, launch_linear, with_mine
from labkit.learn.steps import noted
from labkit.model import LanguageModel, Network
from labkit.model.llama_config import LlamaConfig
from labkit.model.small import VOCAB_SIZE, small_model
from labkit.watch import record_accesses
from labkit.watch.accesses import READ, WRITE, KernelRun
from labkit.watch.launches import device_step_of

# Few prompts with few tokens each: a CPU interprets the reader's kernels, program by program.
# Three requests, because one or two may take another way through the layers.
PROMPTS = ((1, 2, 3), (7, 8, 9, 7, 8, 9, 7), (5,))
NUM_TOKENS = 3
SMALL = {"rope_theta": 100.0, "max_position_embeddings": 64, "vocab_size": VOCAB_SIZE}
CONFIGS = (  # heads of 4 and of 6, groups of 2 and of 3; an eps that tokens depend on
    LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=4, rms_norm_eps=0.1, **SMALL),
    LlamaConfig(hidden_size=24, intermediate_size=12, num_hidden_layers=1, num_attention_heads=6,
                num_key_value_heads=2, head_dim=6, rms_norm_eps=0.01, **SMALL),
)  # fmt: skip


# --- in an engine -------------------------------------------------------------------------------------------


@cache
def model_of(config: LlamaConfig) -> tuple[LanguageModel, list[tuple[int, ...]]]:
    """A random model, and transformers' tokens of it after PROMPTS."""
    model = small_model(config=config)
    return model, transformers_tokens(model, PROMPTS, NUM_TOKENS)


def engine_of(model: LanguageModel, step: Part) -> InferenceEngine:
    """An engine of the finished rung with this step, a `LanedDeviceStep`, in blocks of 4."""
    settings = {"dtype": torch.float32, "cache": CacheConfig(block_size=4, prefix_cache=False)}
    return InferenceEngine(model, FINISHED.options, device=device(), parts={"latency": step}, **settings)


def right_tokens(step: Part) -> None:
    """Raise BrokenContract unless an engine with this step makes transformers' tokens."""
    for config in CONFIGS:
        model, right = model_of(config)
        engine = engine_of(model, step)
        done = engine.generate(PROMPTS, SamplingParams(NUM_TOKENS, stop_on_eos=False))
        engine.check_integrity()
        for prompt, each, wanted in zip(PROMPTS, done, right, strict=True):
            pairs = enumerate(zip_longest(each.token_ids, wanted, fillvalue=f"none ({each.error})"))
            for place, (token, expected) in ((i, pair) for i, pair in pairs if pair[0] != pair[1]):
                raise BrokenContract(
                    f"tokens are transformers': of a Llama with {config.num_heads} heads over "
                    f"{config.num_kv_heads}, new token {place} after {list(prompt)} is {token}, expected "
                    f"{expected}."
                )


def step_with(**kernels: Any) -> type[LanedDeviceStep]:
    """The last rung's step with these kernels, by their names in `with_mine`, and the package's others."""

    class Mine(LanedDeviceStep):
        def __init__(self, slots: Any, network: Any, lanes: Any) -> None:
            super().__init__(slots, network, [with_mine(lane, **kernels) for lane in lanes])

    return Mine


def report_on(step: str, kernel: Any, trial: Callable[[], None], **kernels: Any) -> Report:
    """What a kernel's own trial says, and an engine with it after that."""
    in_engine = partial(right_tokens, step_with(**kernels))
    proof = f"{NUM_DRAWS} random shapes; in an engine of rung 14, transformers' tokens of two small Llamas."
    return noted(proven(step, [trial, in_engine], proof), "15", step, kernel)


@contextmanager
def inside_of_tensors(words: str, always: bool = False) -> Iterator[list[KernelRun]]:
    """Launches inside the block are recorded on a CPU, or always. Raises BrokenContract where one touches
    what is none of its tensors', if nothing else is wrong."""
    with record_accesses() if always or device().type == "cpu" else nullcontext([]) as runs:
        yield runs
    for stray in chain.from_iterable(run.strays() for run in runs):
        raise BrokenContract(
            f"a program touches nothing but its tensors: {words}, program {stray.program} has a {stray.kind} "
            f"at offset {stray.offset} of {stray.tensor}. A mask says which numbers of a tile are there."
        )


# --- products behind an RMSNorm -----------------------------------------------------------------------------

RMS = "an RMSNorm divides each row by sqrt(mean(x^2) + eps)"
RMS_HINT = (
    "A part of a row has `counts` columns, their mean, and the sum of their squared distances from it. Their "
    "x^2 add up to squares + counts * means * means; all parts together, over K, are mean(x^2)."
)


def check_product(
    contract: str,
    kernel: Any,
    product: Product,
    expected: Tensor,
    lookalikes: Mapping[str, Tensor],
    hint: str,
) -> None:
    """Raise BrokenContract unless a kernel makes the expected numbers of a product, and touches no others."""
    with inside_of_tensors(product.words):
        made = launch_linear(kernel, product.x, row_statistics(product.x, product.width), product.layer)
        check_numbers(contract, product.words, made, expected, lookalikes, hint)


def check_rms_linear(kernel: Any) -> Report:
    """Whether a kernel is an RMSNorm and a linear layer, for rows of any size and mean, in an engine, too."""

    def trial() -> None:
        for product in products(is_gated=False):
            check_product(RMS, kernel, product, product.normed, rms_lookalikes(product), RMS_HINT)

    return report_on("rms_linear", kernel, trial, rms_linear=kernel)


GATE = "a gated MLP's input is silu(gate) * up"


def check_gated_linear(kernel: Any) -> Report:
    """Whether a kernel is an RMSNorm, a linear layer and a gate, in an engine, too."""

    def trial() -> None:
        for product in products(is_gated=True):
            gate, up = product.normed[:, 0::2], product.normed[:, 1::2]
            alike = {
                "Nothing is normalized: fill in step 1 first.": product.times(1)[:, 1::2],
                "This is `up`: nothing goes through the gate yet.": up,
                "Here silu is on the wrong half: of each pair, the first is the gate.": gate * F.silu(up),
                "silu(x) is x * sigmoid(x): the gate's own number is missing.": gate.sigmoid() * up,
                "This is GELU: a Llama's gate is a silu, x * sigmoid(x).": F.gelu(gate) * up,
                "The gate is multiplied by up, not added to it.": F.silu(gate) + up,
            }
            hint = "gate and up are what `rms_scaled` made, in pairs: silu(gate) is gate * sigmoid(gate)."
            check_product(GATE, kernel, product, F.silu(gate) * up, alike, hint)

    return report_on("gated_linear", kernel, trial, gated_linear=kernel)


# --- attention ----------------------------------------------------------------------------------------------

ROTATION = "a query and a key are rotated in halves, by the angles of the new token's position"
ROTATION_HINT = (
    "Value d of the first half becomes x[d] * cos - x[d + D/2] * sin, and its partner in the second "
    "x[d + D/2] * cos + x[d] * sin, at cos and sin [position * D/2 + d]."
)


def check_rotation(kernel: Any) -> Report:
    """Whether attention with a program per query head rotates queries and keys, in an engine, too."""
    attention = MyAttention(kernel, per_group=False)

    def trial() -> None:
        for heads in drawn_heads():
            right, right_key = heads.attended(paged_attention_append_plain)
            where = f"{heads.words}, of the key that is stored"
            with inside_of_tensors(heads.words):
                out, key = heads.attended(attention)
                check_numbers(ROTATION, where, key, right_key, rotation_lookalikes(heads), ROTATION_HINT)
                check_numbers(ROTATION, f"{heads.words}, of the attention", out, right, {}, ROTATION_HINT)

    return report_on("rotation", kernel, trial, head=kernel)


GROUP = "H / G neighbouring query heads attend to one head of keys, over all tokens"
GROUP_HINT = (
    "Every query h of the group has its own scores, scale * its product with each key, and its own softmax "
    "over all tokens."
)
ONCE = "each key and each value is read once for all query heads of its group"


def check_group(kernel: Any) -> Report:
    """Whether attention serves a group per program: the numbers, what it reads, and an engine's tokens."""
    attention = MyAttention(kernel, per_group=True)

    def trial() -> None:
        for heads in drawn_heads():
            with inside_of_tensors(heads.words, always=True) as runs:
                out, _ = heads.attended(attention)
                for _, h in out.isnan().all(-1).nonzero().tolist():
                    group = heads.query.shape[1] // heads.key.shape[1]
                    raise BrokenContract(
                        f"{GROUP}: {heads.words}, no program writes query head {h}. A request has one "
                        f"program per head of keys, so each program serves {group} query heads."
                    )
                check_writers(heads, runs[0])
                right, _ = heads.attended(paged_attention_append_plain)
                check_numbers(GROUP, heads.words, out, right, group_lookalikes(heads), GROUP_HINT)
                check_reads(heads, runs[0])
        check_precision(kernel)
        check_dots(kernel, at_least=2)

    return report_on("group", kernel, trial, group=kernel)


def check_writers(heads: Heads, run: Any) -> None:
    """Raise BrokenContract where two programs of a launch write the same query head, or one none of these."""
    B, H, D = heads.query.shape
    writers: dict[int, Any] = {}
    for offset, kind, program in run.touched("out_ptr"):
        if kind == WRITE and (writers.setdefault(offset, program) != program or offset >= B * H * D):
            what = f"query head {offset // D % H}" if offset < B * H * D else "behind the last query head"
            raise BrokenContract(
                f"{GROUP}: {heads.words}, program {program} writes {what}, which is not of its group. On a "
                "GPU whichever program is last would win. Of BLOCK_R rows, r < GROUP are heads of the group."
            )


def check_reads(heads: Heads, run: Any) -> None:
    """Raise BrokenContract unless a launch read every cached number once."""
    _, G, D = heads.key.shape
    expected = int(heads.lengths.sum()) * G * D
    for name in ("k_cache_ptr", "v_cache_ptr"):
        read = sum(kind == READ for _, kind, _ in run.touched(name))
        if read != expected:
            raise BrokenContract(
                f"{ONCE}: {heads.words}, {read} values of {name} were read, expected {expected}. Load a "
                "piece once, and multiply it with the queries of the whole group."
            )


# --- all four in a step -------------------------------------------------------------------------------------


def check_step(step: type) -> Report:
    """Whether an engine with this step makes transformers' tokens, by the reader's own kernels."""

    def is_mine() -> None:
        def apart(slots: DeviceSlots, network: Network, lanes: Sequence[Lane]) -> LanedDeviceStep:
            """The step, of lanes of which each has a function of its own, on a CPU, too."""
            own = [Lane(a, k._replace(linear_residual=partial(k.linear_residual))) for a, k in lanes]
            return step(slots, network, own)

        made = device_step_of(engine_of(model_of(CONFIGS[0])[0], apart))
        if not isinstance(made, LanedDeviceStep):
            raise BrokenContract(f"the step is a `LanedDeviceStep`, as rung 14's: it is {shown(made)}.")
        linears = [half.kernels.norm_linear for half in made.halves]
        attentions = [half.attention.attention for half in made.halves]
        are_mine = all(isinstance(linear, ReadersNormLinear) for linear in linears)
        has = {
            "rms_linear_kernel": are_mine and all(linear.plain for linear in linears),
            "gated_linear_kernel": are_mine and all(linear.gated for linear in linears),
            "group_kernel": all(isinstance(each, MyAttention) and each.per_group for each in attentions),
        }
        if missing := [name for name, there in has.items() if not there]:
            raise BrokenContract(
                f"the engine's layers go through your kernels: {', '.join(missing)} not among them. Hand "
                "`with_mine(lane, ...)` of each lane on, with all three."
            )
        if len({half.kernels.linear_residual for half in made.halves}) < NUM_LANES:
            raise BrokenContract(
                "no lane has another's workspaces: two halves launch the kernels of one lane, or there is "
                "one half. Make `with_mine(lane, ...)` of each lane."
            )

    trials = [partial(right_tokens, step), is_mine]
    proof = "an engine of rung 14 with your kernels makes transformers' tokens of two small Llamas."
    return noted(proven("step", trials, proof), "15", "latency", step)
