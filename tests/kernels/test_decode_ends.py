"""How a decode step begins and ends on the device: by explicit formulas, and each kernel like its twin."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused
from sampling_helpers import random_logits
from torch import Tensor
from triton_marks import (
    DTYPES,
    KERNEL_DEVICE,
    captured,
    devices,
    dtypes,
    needs_interpreter,
    needs_triton,
    twins,
)

from labkit.kernels import (
    checks,
    decode_ends,
    embed_slots_plain,
    embed_slots_triton,
    greedy_advance_plain,
    greedy_advance_triton,
    triton_status,
)
from labkit.kernels.decode_ends import NO_TOKEN
from labkit.kernels.fused_linear import row_statistics
from labkit.kernels.tile_product import must_upcast

if triton_status().mode == "interpreter":
    from triton.runtime.interpreter import ReduceOps

EMBED = pytest.mark.parametrize("embed", twins(embed_slots_plain, embed_slots_triton))
ADVANCE = pytest.mark.parametrize("advance", twins(greedy_advance_plain, greedy_advance_triton))


@pytest.fixture(autouse=True)
def several_programs_a_row(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Rows of these tests are short; those on a GPU are not."""
    if not request.node.get_closest_marker("cuda"):
        monkeypatch.setattr(decode_ends, "LOGITS_PER_PROGRAM", 16)


# --- slots to embeddings ---------------------------------------------------------------------------


def make_embedding(
    E: int = 20, dtype: torch.dtype = torch.float32, device: str = KERNEL_DEVICE
) -> dict[str, Tensor]:
    """Four requests in six slots, the last one nobody's: the arguments by name."""
    like = torch.Generator(device).manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=like, device=device).to(dtype)

    def numbers(*values: int, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return {
        "slot_mapping": numbers(3, 0, 5, 1, dtype=torch.int64),
        "last_token_ids": numbers(8, 2, 7, 0, 4, 6, dtype=torch.int64),
        "context_lens": numbers(3, 0, 4, 11, 9, -1, dtype=torch.int32),
        "token_table": randn(9, E),
        "position_table": randn(12, E),
    }


def stored(numbers: Tensor, dtype: torch.dtype, embed: Callable) -> Tensor:
    """As a tensor of `dtype` holds them. Triton's interpreter cuts a bfloat16 off, where a GPU rounds."""
    if embed is embed_slots_triton and must_upcast(dtype):
        numbers = (numbers.view(torch.int32) & ~0xFFFF).view(torch.float32)
    return numbers.to(dtype)


@dtypes
@devices
@pytest.mark.parametrize("E", [1, 20])
@EMBED
def test_each_request_is_the_sum_of_its_token_and_its_position(
    embed: Callable, E: int, device: str, dtype: torch.dtype
):
    case = make_embedding(E, dtype, device)
    x, statistics = embed(**case)
    assert (x.shape, x.dtype, x.device) == ((4, E), dtype, case["token_table"].device)
    pairs = [(0, 11), (8, 3), (6, 0), (2, 0)]  # token and position; nobody's is 0
    for row, (token_id, position) in zip(x, pairs, strict=True):
        expected = case["token_table"][token_id].float() + case["position_table"][position].float()
        assert torch.equal(row, stored(expected, dtype, embed))
    assert statistics.width == E
    mean, squares = statistics.parts.double().unbind(2)
    assert mean.shape == (4, 1) and statistics.parts.dtype == torch.float32
    centered = x.double() - x.double().mean(1, keepdim=True)
    torch.testing.assert_close(mean[:, 0], x.double().mean(1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(squares[:, 0], centered.square().sum(1), rtol=1e-5, atol=1e-6)


@EMBED
def test_without_positions_each_request_is_its_token_and_no_request_is_none(embed: Callable):
    case = make_embedding(20) | {"position_table": None}
    x, statistics = embed(**case)
    assert torch.equal(x, case["token_table"][[0, 8, 6, 2]])
    torch.testing.assert_close(statistics.parts, row_statistics(x, 20).parts)
    x, statistics = embed(**case | {"slot_mapping": case["slot_mapping"][:0]})
    assert x.shape == (0, 20) and statistics.parts.shape == (0, 1, 2)


@EMBED
def test_statistics_of_embeddings_far_from_0_keep_their_variance(embed: Callable):
    case = make_embedding(20)
    case["token_table"] += 4096
    x, statistics = embed(**case)
    squares = x.double().var(1, correction=0) * 20
    torch.testing.assert_close(statistics.parts[:, 0, 1].double(), squares, rtol=1e-4, atol=0)
    case["token_table"].fill_(2.5), case["position_table"].zero_()
    assert embed(**case)[1].parts.tolist() == [[[2.5, 0]]] * 4


# --- logits to tokens and slots --------------------------------------------------------------------

UNTOUCHED = 77


def make_slots(B: int, device: str = KERNEL_DEVICE) -> dict[str, Tensor]:
    """B requests in 2 * B + 1 slots: every second one, backwards; the last slot is nobody's."""
    S = 2 * B + 1
    slots = {
        "slot_mapping": 1 + 2 * torch.arange(B, device=device).flip(0),
        "last_token_ids": torch.full((S,), UNTOUCHED, dtype=torch.int64, device=device),
        "context_lens": torch.arange(S, dtype=torch.int32, device=device),
    }
    slots["context_lens"][-1] = -1
    return slots


def tokens_by_python(logits: Tensor) -> list[int]:
    """The first of the largest; NO_TOKEN where one is NaN or inf, or all are -inf."""
    tokens = []
    for row in logits.tolist():
        largest = max(row)
        broken = any(math.isnan(x) or x == math.inf for x in row) or largest == -math.inf
        tokens.append(NO_TOKEN if broken else row.index(largest))
    return tokens


def assert_advances(advance: Callable, logits: Tensor, slots: dict, tokens: list[int]) -> None:
    """The tokens asked for, and every slot as it must be after them."""
    before = {name: value.clone() for name, value in slots.items()}
    made = advance(logits, **slots)
    assert (made.dtype, made.device, made.tolist()) == (torch.int64, logits.device, tokens)
    assert torch.equal(slots["slot_mapping"], before["slot_mapping"])
    last, lens = before["last_token_ids"].tolist(), before["context_lens"].tolist()
    for slot, token_id in zip(slots["slot_mapping"].tolist(), tokens, strict=True):
        last[slot] = max(token_id, 0)
        lens[slot] = before["context_lens"][slot].item() + (before["context_lens"][slot].item() >= 0)
    assert slots["last_token_ids"].tolist() == last
    assert slots["context_lens"].tolist() == lens


@needs_interpreter
@pytest.mark.parametrize("place", [0, 39])
def test_a_row_with_nan_has_no_token_though_every_comparison_with_nan_is_false(
    monkeypatch: pytest.MonkeyPatch, place: int
):
    """As on a GPU, number after number. The interpreter asks NumPy instead, whose maximum is NaN wherever one
    is, and would not miss it if the kernel did not mark NaN as infinite."""
    monkeypatch.setattr(ReduceOps, "apply_impl", ReduceOps.generic_reduce)
    logits = random_logits(2, 40, device=KERNEL_DEVICE)
    expected = tokens_by_python(logits)
    logits[1, place] = math.nan
    assert_advances(greedy_advance_triton, logits, make_slots(2), [expected[0], NO_TOKEN])


VALUES = st.sampled_from([0.0, 1.0, 1.0, 2.0, 5.0, -1.0, -math.inf, math.nan, math.inf])


@pytest.mark.slow
@needs_triton
@settings(max_examples=40)
@given(data=st.data())
def test_any_logits_give_the_tokens_and_slots_of_the_twin(data: st.DataObject):
    B, V = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 70))
    dtype = data.draw(st.sampled_from(DTYPES))
    logits = random_logits(B, V, seed=data.draw(st.integers(0, 99)), device=KERNEL_DEVICE)
    logits = logits.to(dtype).round()  # many tie
    row, column = st.integers(0, max(0, B - 1)), st.integers(0, V - 1)
    for b, v, value in data.draw(st.lists(st.tuples(row, column, VALUES), max_size=6 if B else 0)):
        logits[b, v] = value
    if B and data.draw(st.booleans()):
        logits[data.draw(row)] = data.draw(VALUES)
    wide = logits.new_full((B, V + 29), data.draw(st.sampled_from([100.0, math.nan])))  # a padded vocabulary
    wide[:, :V] = logits
    logits, expected = wide[:, :V], tokens_by_python(logits)
    before = logits.clone()
    for advance in (greedy_advance_plain, greedy_advance_triton):
        assert_advances(advance, logits, make_slots(B), expected)
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)


# --- what the wrappers refuse ----------------------------------------------------------------------


@EMBED
def test_what_cannot_be_embedded_is_refused_by_name(embed: Callable):
    free = ("slot_mapping rows", "slot_mapping width", "token_table rows", "position_table rows")
    assert_each_wrong_tensor_is_refused(embed, make_embedding(), free)


@ADVANCE
def test_what_has_no_tokens_is_refused_by_name(advance: Callable):
    arguments = {"logits": random_logits(4, 40, device=KERNEL_DEVICE), **make_slots(4)}
    assert_each_wrong_tensor_is_refused(advance, arguments, ("logits width", "logits dtype"))


@pytest.mark.parametrize(
    ("name", "bad", "largest"),
    [("slot_mapping", -1, 5), ("slot_mapping", 6, 5), ("last_token_ids", -1, 8), ("last_token_ids", 9, 8)],
)
@EMBED
def test_what_there_is_not_is_refused_if_values_are_checked(
    monkeypatch: pytest.MonkeyPatch, embed: Callable, name: str, bad: int, largest: int
):
    monkeypatch.setattr(checks, "DEBUG", True)
    case = make_embedding()
    embed(**case)
    case[name][0] = bad
    with pytest.raises(ValueError, match=rf"^{name} has values from .* outside of 0 to {largest}"):
        embed(**case)


# --- on a GPU --------------------------------------------------------------------------------------

V = 50257
PADDED = 50304  # the next multiple of 64


@pytest.mark.cuda
@dtypes
@pytest.mark.parametrize("B", [1, 8, 64, 256])
@pytest.mark.parametrize("width", [V, PADDED], ids=["a vocabulary", "a padded one"])
def test_on_a_gpu_a_whole_vocabulary_has_the_tokens_of_torch(width: int, B: int, dtype: torch.dtype):
    """Many tie for the largest: of these the first, which torch.max alone need not take on a GPU."""
    for seed in range(5):
        wide = torch.zeros(B, width, dtype=dtype, device="cuda")
        wide[:, :V] = random_logits(B, V, seed=seed, device="cuda").to(dtype).round().clamp(max=6) - 100
        logits = wide[:, :V]
        bad = [None, math.nan, math.inf, -math.inf, None][seed]
        if bad is not None:
            logits[B // 2, V - 1 - seed] = bad
        largest = logits.max(dim=1, keepdim=True).values
        places = torch.arange(V, device="cuda").expand(B, V).masked_fill(logits != largest, V)
        expected = places.min(1).values.masked_fill(~largest[:, 0].isfinite(), NO_TOKEN).tolist()
        assert bad is not None or (logits == largest).sum(1).max() > 1  # they tie
        assert (expected[B // 2] == NO_TOKEN) == (bad is math.nan or bad is math.inf)
        assert_advances(greedy_advance_triton, logits, make_slots(B, "cuda"), expected)


@pytest.mark.cuda
def test_on_a_gpu_a_graph_of_both_ends_goes_on_from_its_own_tokens():
    """Logits look up the next token in a table, so each replay's tokens are those of the one before."""
    B, E = 8, 64
    like = torch.Generator("cuda").manual_seed(0)
    table = torch.randn(V, E, generator=like, device="cuda").half()
    token_table, position_table = (torch.randn(n, E, generator=like, device="cuda").half() for n in (V, 128))

    def step(slots: dict) -> list[Tensor]:
        x, statistics = embed_slots_triton(*slots.values(), token_table, position_table)
        logits = (x @ table.T).float()
        return [x, statistics.parts, greedy_advance_triton(logits, **slots)]

    slots, others = make_slots(B, "cuda"), make_slots(B, "cuda")
    graph, made = captured(lambda: step(slots))
    step(others)  # as the first has been
    for _ in range(20):
        expected = step(others)
        graph.replay()
        assert all(map(torch.equal, made, expected))
    assert all(map(torch.equal, slots.values(), others.values()))
    assert slots["context_lens"][-2].item() == 2 * B - 1 + 21
