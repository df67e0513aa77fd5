"""Lesson 15: what each of the reader's kernels must compute, alone and in a running engine.

A kernel is first called on random shapes, the smallest ones first, then it takes the place of the package's
on rung 14, in small random Llamas, and every token must be the one that transformers makes.

H heads of queries, G heads of keys and values, D head size.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.bench.parity import transformers_tokens
from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.parts import Part
from labkit.engine.step.lanes import LanedDeviceStep
from labkit.kernels import HeadTransform, NormLinear, RowStatistics, paged_attention_append_plain
from labkit.kernels.fused_linear import row_statistics
from labkit.ladder import FINISHED
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven
from labkit.learn.lesson_09.gate import check_precision, device, drawn
from labkit.learn.lesson_15.steps import MyAttention, launch_linear, with_mine
from labkit.learn.steps import noted
from labkit.model import LanguageModel
from labkit.model.decoder_weights import split_heads
from labkit.model.llama_config import LlamaConfig
from labkit.model.small import VOCAB_SIZE, small_model
from labkit.watch import record_accesses
from labkit.watch.accesses import READ, WRITE, KernelRun
from labkit.watch.launches import device_step_of

CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # sums in another order are right, too; 16 bits on the way are not
# Few prompts with few tokens each: a CPU interprets the reader's kernels, program by program.
# Three requests, because a single one may take another way through the layers.
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
            if each.token_ids != wanted:
                ended = f" ({each.error})" if each.error else ""
                raise BrokenContract(
                    f"tokens are transformers': of a Llama with {config.num_heads} heads over "
                    f"{config.num_kv_heads}, after {list(prompt)} come {list(each.token_ids)}{ended}, "
                    f"expected {list(wanted)}."
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
    proof = f"{len(HEADS)} shapes; in an engine of rung 14, transformers' tokens of two small Llamas."
    return noted(proven(step, [trial, in_engine], proof), "15", step, kernel)


def check_numbers(
    contract: str, where: str, made: Tensor, expected: Tensor, lookalikes: Mapping[str, Tensor], hint: str
) -> None:
    """Raise BrokenContract for the first number that is not the expected one, with the hint, or with the
    sentence of the likely mistake among `lookalikes` that makes these numbers."""
    wrong = (~torch.isclose(made.double(), expected.double(), **CLOSE)).nonzero().tolist()
    if wrong:
        place = tuple(wrong[0])
        alike = (
            sentence
            for sentence, other in lookalikes.items()
            if torch.allclose(made.double(), other.double(), **CLOSE, equal_nan=True)
        )
        raise BrokenContract(
            f"{contract}: {where}, value {list(place)} is {made[place].item():.4f}, expected "
            f"{expected[place].item():.4f}. {next(alike, hint)}"
        )


# --- products behind an RMSNorm -----------------------------------------------------------------------------

RMS = "an RMSNorm divides each row by sqrt(mean(x^2) + eps)"
RMS_HINT = (
    "A part of a row has `counts` columns, their mean, and the sum of their squared distances from it. Their "
    "x^2 add up to squares + counts * means * means; all parts together, over K, are mean(x^2)."
)
PRODUCTS = (  # in words; M, K and N; how large the rows are, and their mean; columns of a part
    ("rows of mean 0", (2, 3, 4), 1, 0, 3),
    ("rows of mean 3, in 3 parts", (3, 20, 34), 1, 3, 7),
    ("rows of zeros", (2, 5, 6), 0, 0, 5),
    ("rows nearly as small as eps", (2, 30, 180), 1 / 500, 0, 30),
)
GATE = "a gated MLP's input is silu(gate) * up"
GATE_HINT = "Of each pair that `rms_scaled` made, the first is the gate: silu(gate) is gate * sigmoid(gate)."


def products(is_gated: bool) -> Iterator[tuple[str, Tensor, RowStatistics, NormLinear]]:
    """In words, rows x [M, K], their statistics and a layer behind a norm, of the sizes in PRODUCTS."""
    for seed, (words, (M, K, N), size, mean, width) in enumerate(PRODUCTS):
        x, weight = drawn(M, K, seed=seed) * size + mean, drawn(N, K, seed=100 + seed)
        where = f"with x [{M}, {K}], {words}, and a weight [{N}, {K}]"
        yield where, x, row_statistics(x, width), NormLinear(weight, None, None, 1e-5, is_gated)


def product_of(x: Tensor, layer: NormLinear) -> tuple[Tensor, Tensor]:
    """The product of the rows as they are, and what an RMSNorm and the layer make of them."""
    product = x.double() @ layer.weight.double().T
    return product, product * (x.double().pow(2).mean(1, keepdim=True) + layer.eps).rsqrt()


def check_rms_linear(kernel: Any) -> Report:
    """Whether a kernel is an RMSNorm and a linear layer, for rows of any size and mean, in an engine, too."""

    def trial() -> None:
        for where, x, statistics, layer in products(is_gated=False):
            product, normed = product_of(x, layer)
            made = launch_linear(kernel, x, statistics, layer)
            alike = {"This is the product of x as it is: nothing is normalized yet.": product}
            check_numbers(RMS, where, made, normed, alike, RMS_HINT)

    return report_on("rms_linear", kernel, trial, rms_linear=kernel)


def check_gated_linear(kernel: Any) -> Report:
    """Whether a kernel is an RMSNorm, a linear layer and a gate, in an engine, too."""

    def trial() -> None:
        for where, x, statistics, layer in products(is_gated=True):
            product, normed = product_of(x, layer)
            gate, up = normed[:, 0::2], normed[:, 1::2]
            made = launch_linear(kernel, x, statistics, layer)
            alike = {
                "Nothing is normalized: fill in step 1 first.": product[:, 1::2],
                "This is `up`: nothing goes through the gate yet.": up,
            }
            check_numbers(GATE, where, made, F.silu(gate) * up, alike, GATE_HINT)

    return report_on("gated_linear", kernel, trial, gated_linear=kernel)


# --- attention ----------------------------------------------------------------------------------------------

HEADS = ((2, 1, 2, 3), (4, 2, 6, 2), (6, 2, 4, 7), (6, 2, 10, 11))  # H, G, D, and tokens
ROTATION = "a query and a key are rotated in halves, by the angles of the new token's position"
ROTATION_HINT = (
    "Value d of the first half becomes x[d] * cos - x[d + D/2] * sin, and its partner in the second "
    "x[d + D/2] * cos + x[d] * sin, at cos and sin [position * D/2 + d]."
)
GROUP = "H / G neighbouring query heads attend to one head of keys, over all tokens"
GROUP_HINT = (
    "Query head h is of group h // (H / G). It has its own scores, scale * its product with each key, and "
    "its own softmax over all tokens."
)
ONCE = "each key and each value is read once for all query heads of its group"


class Heads(NamedTuple):
    """What attention of one layer gets, for a request with some tokens in its block, the cache's only one."""

    query: Tensor  # [1, H, D]
    key: Tensor  # [1, G, D]
    value: Tensor
    k_cache: Tensor  # [1, G, tokens + 1, D]
    v_cache: Tensor
    transform: HeadTransform | None  # [positions, D / 2] each

    @property
    def num_tokens(self) -> int:
        return self.k_cache.shape[2] - 1

    @property
    def words(self) -> str:
        (_, H, D), G = self.query.shape, self.key.shape[1]
        heads = f"with {H} heads of {D} values over {G} of keys and values"
        return f"{heads}, and [{self.num_tokens}] tokens in the cache"

    def attended(self, attention: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        """What an attention makes of it [1, H, D], and the key that it stores [1, G, D]."""
        *new, k_cache, v_cache, transform = self
        table = torch.zeros(1, 1, dtype=torch.int32, device=k_cache.device)
        request = table, table[0] + self.num_tokens, table[0].long()
        k_cache = k_cache.clone()
        out = attention(*new, k_cache, v_cache.clone(), *request, self.num_tokens, transform)
        return out, k_cache[:, :, -1]


def heads_of(H: int, G: int, D: int, num_tokens: int, seed: int = 0) -> Heads:
    """Random heads of a request with so many tokens in the cache."""
    shapes = ((1, H, D), (1, G, D), (1, G, D), (1, G, num_tokens + 1, D), (1, G, num_tokens + 1, D))
    tensors = [drawn(*shape, seed=10 * seed + i) for i, shape in enumerate(shapes)]
    positions = torch.arange(num_tokens + 2, device=device())  # the new token's, and one more
    angles = positions[:, None] / 9 ** (torch.arange(D // 2, device=device()) / (D // 2))
    return Heads(*tensors, HeadTransform(angles.cos(), angles.sin()))


def drawn_heads() -> Iterator[Heads]:
    """Random heads of the sizes in HEADS."""
    for seed, sizes in enumerate(HEADS):
        yield heads_of(*sizes, seed=seed)


def launched(heads: Heads, attention: MyAttention) -> tuple[Tensor, Tensor, KernelRun]:
    """What the reader's attention makes of heads, the keys that it stores, and its launch. Raises
    BrokenContract where it touches what is none of its tensors'."""
    with record_accesses() as runs:
        out, key = heads.attended(attention)
    if strays := runs[0].strays():
        tensor, offset, kind, program = strays[0]
        raise BrokenContract(
            f"a program touches nothing but its tensors: {heads.words}, program {program} has a {kind} "
            f"at offset {offset} of {tensor}. A mask says which numbers of a tile are there."
        )
    return out, key, runs[0]


def check_rotation(kernel: Any) -> Report:
    """Whether attention with a program per query head rotates queries and keys, in an engine, too."""
    attention = MyAttention(kernel, per_group=False)

    def trial() -> None:
        for heads in drawn_heads():
            _, right = heads.attended(paged_attention_append_plain)
            _, key, _ = launched(heads, attention)
            alike = {
                "It is stored as it came: nothing is rotated, or all by the angles of position 0. The new "
                "token's position is the number of tokens in the cache.": heads.key,
                "Here neighbours, numbers 2i and 2i + 1, are rotated, as in RoPE's paper. Hugging Face's "
                "Llamas rotate number d with number d + D/2.": rotated_in_pairs(heads),
            }
            where = f"{heads.words}, of the key that is stored"
            check_numbers(ROTATION, where, key, right, alike, ROTATION_HINT)

    return report_on("rotation", kernel, trial, head=kernel)


def rotated_in_pairs(heads: Heads) -> Tensor:
    """The new key [1, G, D], each value 2i rotated with the next one."""
    c, s = (table[heads.num_tokens] for table in (heads.transform.cos, heads.transform.sin))
    first, second = heads.key[..., 0::2], heads.key[..., 1::2]
    return torch.stack([first * c - second * s, second * c + first * s], dim=-1).flatten(-2)


def check_group(kernel: Any) -> Report:
    """Whether attention serves a group per program: the numbers, what it reads, and an engine's tokens."""
    attention = MyAttention(kernel, per_group=True)

    def trial() -> None:
        for heads in drawn_heads():
            out, _, run = launched(heads, attention)
            check_writers(heads, run)
            right, _ = heads.attended(paged_attention_append_plain)
            still, _ = heads._replace(transform=None).attended(paged_attention_append_plain)
            alike = {"Nothing is rotated: fill in step 3 first.": still}
            check_numbers(GROUP, heads.words, out, right, alike, GROUP_HINT)
            check_reads(heads, run)
        check_precision(kernel)

    return report_on("group", kernel, trial, group=kernel)


def check_writers(heads: Heads, run: KernelRun) -> None:
    """Raise BrokenContract unless one program of a launch writes each query head."""
    _, H, D = heads.query.shape
    group = H // heads.key.shape[1]
    writes = Counter(offset // D for offset, kind, _ in run.touched("out_ptr") if kind == WRITE)
    for h in range(H):
        if writes[h] != D:
            raise BrokenContract(
                f"{GROUP}: {heads.words}, {'several programs write' if writes[h] else 'no program writes'} "
                f"query head {h}. A request has one program per head of keys, so each program serves {group} "
                "query heads."
            )


def check_reads(heads: Heads, run: KernelRun) -> None:
    """Raise BrokenContract unless a launch read every cached number once."""
    _, G, D = heads.key.shape
    expected = heads.num_tokens * G * D
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
        halves = device_step_of(engine_of(model_of(CONFIGS[0])[0], step)).halves
        linears = [half.kernels.norm_linear for half in halves]
        has = {
            "rms_linear_kernel": [getattr(linear, "plain", None) for linear in linears],
            "gated_linear_kernel": [getattr(linear, "gated", None) for linear in linears],
            "group_kernel": [getattr(half.attention.attention, "per_group", None) for half in halves],
        }
        if missing := [name for name, there in has.items() if not all(there)]:
            raise BrokenContract(
                f"the engine's layers go through your kernels: {', '.join(missing)} not among them. Hand "
                "`with_mine(lane, ...)` of each lane on, with all three."
            )

    trials = [partial(right_tokens, step), is_mine]
    proof = "an engine of rung 14 with your kernels makes transformers' tokens of two small Llamas."
    return noted(proven("step", trials, proof), "15", "latency", step)


class DealtOut(LanedDeviceStep):
    """Query head h reads head h % G of the keys, and not head h // (H / G)."""

    def attend(self, layer_idx: int, qkv: Tensor) -> Tensor:
        config = self.network.config
        query, key, value = split_heads(qkv, config.num_heads, config.num_kv_heads)
        G, transform = key.shape[1], self.layers[layer_idx].transform
        dealt = query.unflatten(1, (-1, G)).transpose(1, 2).flatten(1, 2)  # each head beside its key's others
        out = self.attention.attend_heads(layer_idx, dealt, key, value, transform)
        return out.unflatten(1, (G, -1)).transpose(1, 2).flatten(1)
