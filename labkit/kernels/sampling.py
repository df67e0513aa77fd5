"""How tokens are drawn without a sort: top-k and top-p cut where a search says, and min-p at a known score.

B rows, V vocabulary, S slots. Tokens are ordered by score, and among equal scores by id. A cut is where the
weight of the tokens up to there first passes a limit: with a weight of 1 each, the k-th largest; with their
probabilities, the token that crosses p. A search for it asks for the weight up to a guess, again and again.

The tokens kept are those of `labkit.kernels.distribution.warp`. Only its sort does not say which it drops
first of the tokens that tie with the one that crosses p; here those of lower id are. (PyTorch's sort of a
whole vocabulary keeps equals in their order on a GPU, so there the tokens are the same; on a CPU it
need not.)
"""

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.distribution import (
    DTYPES,
    SamplingState,
    kept_by_min_p,
    pick,
    scaled,
    uniform_number_of,
    uniform_numbers,
)
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton

LOGITS_PER_CHUNK = 4096  # that a program reads at once
NUM_WARPS = 16


# --- in plain PyTorch -----------------------------------------------------------------------------------


def draw_plain(
    logits: Tensor,  # [B, V]
    token_ids: Tensor,  # [B] int64
    slot_mapping: Tensor,  # [B] int64
    last_token_ids: Tensor,  # [S] int64
    state: SamplingState,
    is_filtered: bool,
) -> None:
    """Draw a token in each row whose slot has a temperature, in place of the likeliest one.

    token_ids: the likeliest token of each row, or NO_TOKEN; a row without a token gets none.
    Changes in place: `token_ids` and the slots' last tokens, where a token is drawn, and `state.draws`, by 1
    for each row.
    is_filtered: whether any row has top-k, top-p or min-p; if not, nothing is searched for.
    Plain PyTorch: the oracle of `draw_triton`. The tokens are those of `labkit.engine.sampling.sample_any`,
    unless rounding decides what top-p drops. Raises ValueError for arguments that do not fit.
    """
    check_draw(logits, token_ids, slot_mapping, last_token_ids, state)
    temperatures, top_ks, top_ps, min_ps, seeds, draws = state.at(slot_mapping)
    scores = scaled(logits, temperatures)
    if is_filtered:
        scores = scores.masked_fill(~kept_by_top_k(scores, top_ks), -torch.inf)
        scores = scores.masked_fill(~kept_by_top_p(scores, top_ps), -torch.inf)
        scores = scores.masked_fill(~kept_by_min_p(scores, min_ps), -torch.inf)
    drawn = pick(scores.softmax(dim=-1), uniform_numbers(seeds, draws))
    is_drawn = (temperatures > 0) & (token_ids >= 0)
    token_ids.copy_(torch.where(is_drawn, drawn, token_ids))
    last_token_ids[slot_mapping] = token_ids.clamp(min=0)
    state.draws[slot_mapping] = draws + 1


def kept_by_top_k(scores: Tensor, top_ks: Tensor) -> Tensor:
    """Which tokens [B, V] are among the row's `top_ks` [B] of highest score, ties with the last included."""
    V = scores.shape[-1]
    keys = ordered(scores)
    limits = V - top_ks.masked_fill(top_ks == 0, V).clamp(max=V)
    return keys >= crossing(keys, torch.ones_like(scores, dtype=torch.float64), limits)[:, None]


def kept_by_top_p(scores: Tensor, top_ps: Tensor) -> Tensor:
    """Which tokens [B, V] are the likeliest whose probabilities first reach the row's `top_ps` [B]."""
    V = scores.shape[-1]
    keys = ordered(scores) * V + torch.arange(V, device=scores.device)  # no two are equal
    limits = (1 - top_ps).float()
    is_kept = keys >= crossing(keys, scores.softmax(dim=-1).double(), limits)[:, None]
    return is_kept | (top_ps == 1)[:, None]


def ordered(scores: Tensor) -> Tensor:
    """Whole numbers in the order of float32 numbers: their bits, those of negative ones turned around."""
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()


def crossing(keys: Tensor, weights: Tensor, limits: Tensor) -> Tensor:
    """In each row [V], the smallest key at which the weight of all keys up to it is above the row's limit.

    The row's largest key if there is none. keys: [B, V] int64. weights: [B, V] float64; their sum is rounded
    to float32. limits: [B].
    """
    below, high = keys.amin(dim=-1) - 1, keys.amax(dim=-1)
    for _ in range((2**32 * keys.shape[-1]).bit_length()):  # halvings
        middle = below + (high - below) // 2
        weight = torch.where(keys <= middle[:, None], weights, 0).sum(dim=-1)
        is_above = weight.float() > limits
        below, high = torch.where(is_above, below, middle), torch.where(is_above, middle, high)
    return high


# --- as a kernel ----------------------------------------------------------------------------------------


def draw_triton(
    logits: Tensor,
    token_ids: Tensor,
    slot_mapping: Tensor,
    last_token_ids: Tensor,
    state: SamplingState,
    is_filtered: bool,
) -> None:
    """Draw a token in each row whose slot has a temperature, in one kernel: one program per row, which reads
    the row again for each guess. Other rows' programs leave at once.

    Takes what `draw_plain` takes, and draws its tokens up to rounding. Equal are logits here, not scores.
    Raises ValueError for arguments that do not fit, and TritonUnavailableError where no kernel runs.
    """
    tensors = logits, token_ids, slot_mapping, last_token_ids
    check_draw(*tensors, state)
    check_launchable(logits.device)
    B, V = logits.shape
    _draw_kernel[(B,)](
        *tensors,
        *state,
        V,
        logits.stride(0),
        IS_FILTERED=is_filtered,
        CHUNK=LOGITS_PER_CHUNK,
        NUM_CHUNKS=triton.next_power_of_2(triton.cdiv(V, LOGITS_PER_CHUNK)),
        num_warps=NUM_WARPS,
        **early_launch(logits.device),
    )


@triton.jit
def _draw_kernel(
    logits_ptr, token_ids_ptr, slot_mapping_ptr, last_token_ids_ptr, temperatures_ptr, top_ks_ptr, top_ps_ptr,
    min_ps_ptr, seeds_ptr, draws_ptr,
    V,
    logits_stride_b,
    IS_FILTERED: tl.constexpr, CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    slot = tl.load(slot_mapping_ptr + b)
    temperature = tl.load(temperatures_ptr + slot)
    likeliest = tl.load(token_ids_ptr + b)
    index = tl.load(draws_ptr + slot)
    tl.store(draws_ptr + slot, index + 1)
    if (temperature > 0) & (likeliest >= 0):
        row_ptr = logits_ptr + b * logits_stride_b
        largest = tl.load(row_ptr + likeliest).to(tl.float32)
        temperature = tl.minimum(tl.maximum(temperature, 1.1754943508222875e-38), 3.4028234663852886e38)
        temperature = temperature.to(tl.float32).to(tl.float64)  # divided by as in `warp`
        rate, rest = _rate(temperature)
        floor = largest * 0 - 3.4028234663852886e38  # what is not below it is kept: all but -inf
        cut = floor
        limit = largest * 0 - 1  # below any weight, so that nothing equal to the cut is dropped
        below = tl.zeros([], tl.float64)
        mass = tl.full([], 1.0, tl.float64)
        if IS_FILTERED:
            top_k = tl.load(top_ks_ptr + slot)
            if (top_k > 0) & (top_k < V):
                num_others = (V - top_k).to(tl.float32)
                floor, _ = _crossing(row_ptr, V, largest, floor, rate, rest, num_others, mass, False, CHUNK)
                cut = floor
            top_p = tl.load(top_ps_ptr + slot)
            if top_p < 1:
                limit = (1 - top_p).to(tl.float32)
                mass, _, _ = _weights_up_to(
                    row_ptr, V, largest, floor, rate, rest, largest, largest, largest, True, CHUNK
                )
                cut, below = _crossing(row_ptr, V, largest, floor, rate, rest, limit, mass, True, CHUNK)
            min_p = tl.load(min_ps_ptr + slot)
            if min_p > 0:
                least = (largest + temperature * tl.log(min_p)).to(tl.float32)
                if least > cut:
                    cut = least
                    limit = largest * 0 - 1
        uniform = uniform_number_of(tl.load(seeds_ptr + slot), index)
        token_id = _pick(row_ptr, V, largest, cut, limit, below, mass, rate, rest, uniform, CHUNK, NUM_CHUNKS)
        tl.store(token_ids_ptr + b, token_id)
        tl.store(last_token_ids_ptr + slot, token_id)


@triton.jit
def _rate(temperature):
    """What a difference of logits is multiplied by to be an exponent of 2, as the sum of two float32: one
    rounded down, and the rest, which is not negative."""
    exact = 1.4426950408889634 / temperature
    rate = (exact * (1 - 2.0**-24)).to(tl.float32)
    return rate, (exact - rate.to(tl.float64)).to(tl.float32)


@triton.jit
def _weight(logits, largest, rate, rest):
    """The probability of a logit, divided by that of the largest."""
    apart = logits - largest
    return tl.exp2(tl.fma(apart, rest, apart * rate))


@triton.jit
def key_of(logit, element: tl.constexpr):
    """A whole number for a logit, in the order of the logits and without a gap between two of them."""
    if element.primitive_bitwidth == 16:
        bits = logit.to(element).to(tl.int16, bitcast=True).to(tl.int64)
        return tl.where(bits < 0, bits ^ 0x7FFF, bits)
    bits = logit.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def logit_of(key, element: tl.constexpr):
    """The logit of a key, in float32."""
    if element.primitive_bitwidth == 16:
        bits = tl.where(key < 0, key ^ 0x7FFF, key).to(tl.int16)
        return bits.to(element, bitcast=True).to(tl.float32)
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _crossing(
    row_ptr, V, largest, floor, rate, rest, limit, mass, IS_WEIGHTED: tl.constexpr, CHUNK: tl.constexpr
):
    """The smallest logit at which the weight up to it, from the floor, divided by `mass`, is above a limit;
    and the weight below it. Each round asks for three guesses, and leaves a quarter of what can be."""
    element: tl.constexpr = row_ptr.dtype.element_ty
    low = key_of(floor, element) - 1  # not above the limit
    high = key_of(largest, element)  # above it
    below = tl.zeros([], tl.float64)
    while high - low > 1:
        step = (high - low + 3) // 4
        key_1 = low + step
        key_2 = tl.minimum(low + 2 * step, high - 1)
        key_3 = tl.minimum(low + 3 * step, high - 1)
        guess_1 = logit_of(key_1, element)
        guess_2 = logit_of(key_2, element)
        guess_3 = logit_of(key_3, element)
        weight_1, weight_2, weight_3 = _weights_up_to(
            row_ptr, V, largest, floor, rate, rest, guess_1, guess_2, guess_3, IS_WEIGHTED, CHUNK
        )
        if (weight_1 / mass).to(tl.float32) > limit:
            high = key_1
        elif (weight_2 / mass).to(tl.float32) > limit:
            low, below, high = key_1, weight_1, key_2
        elif (weight_3 / mass).to(tl.float32) > limit:
            low, below, high = key_2, weight_2, key_3
        else:
            low, below = key_3, weight_3
    return logit_of(high, element), below


@triton.jit
def _weights_up_to(
    row_ptr, V, largest, floor, rate, rest, guess_1, guess_2, guess_3,
    IS_WEIGHTED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The weight of the logits up to each of three guesses: of those from the floor, or the number of all."""
    lanes = tl.arange(0, CHUNK)
    # Few numbers are added in float32, in each lane; the lanes' sums in float64.
    sum_1 = tl.zeros([CHUNK], tl.float32)
    sum_2 = tl.zeros([CHUNK], tl.float32)
    sum_3 = tl.zeros([CHUNK], tl.float32)
    whole = V // CHUNK * CHUNK
    for start in range(0, whole, CHUNK):  # without a mask, so that a load is of many numbers
        logits = tl.load(row_ptr + start + lanes).to(tl.float32)
        numbers = _numbers(logits, largest, floor, rate, rest, IS_WEIGHTED)
        sum_1 += tl.where(logits <= guess_1, numbers, 0.0)
        sum_2 += tl.where(logits <= guess_2, numbers, 0.0)
        sum_3 += tl.where(logits <= guess_3, numbers, 0.0)
    v = whole + lanes
    logits = tl.load(row_ptr + v, mask=v < V, other=float("inf")).to(tl.float32)  # which is above any guess
    numbers = _numbers(logits, largest, floor, rate, rest, IS_WEIGHTED)
    sum_1 += tl.where(logits <= guess_1, numbers, 0.0)
    sum_2 += tl.where(logits <= guess_2, numbers, 0.0)
    sum_3 += tl.where(logits <= guess_3, numbers, 0.0)
    return tl.sum(sum_1.to(tl.float64)), tl.sum(sum_2.to(tl.float64)), tl.sum(sum_3.to(tl.float64))


@triton.jit
def _numbers(logits, largest, floor, rate, rest, IS_WEIGHTED: tl.constexpr):
    """What each logit counts."""
    numbers = tl.full(logits.shape, 1.0, tl.float32)
    if IS_WEIGHTED:
        numbers = tl.where(logits >= floor, _weight(logits, largest, rate, rest), 0.0)
    return numbers


@triton.jit
def _num_up_to(limit, below, weight, mass, num_equal):
    """How many tokens of the same weight leave the weight up to them, divided by mass, at or under a limit.
    Not all of them: the last one crosses it."""
    low = tl.zeros([], tl.int32)
    high = num_equal
    while high - low > 1:
        middle = (low + high) // 2
        if ((below + middle * weight) / mass).to(tl.float32) > limit:
            high = middle
        else:
            low = middle
    return low


@triton.jit
def _pick(
    row_ptr, V, largest, cut, limit, below, mass, rate, rest, uniform,
    CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
):  # fmt: skip
    """The first token at which the cumulated weight of those that are kept passes the uniform number's share.

    Kept are logits above the cut, and those equal to it but for the first few, with which the weight is not
    yet above the limit. One pass adds up each chunk; then the chunk where the token is is gone through.
    """
    lanes = tl.arange(0, CHUNK)
    chunks = tl.arange(0, NUM_CHUNKS)
    masses = tl.zeros([NUM_CHUNKS], tl.float64)  # of what is above the cut
    num_equal = tl.zeros([NUM_CHUNKS], tl.int32)
    for i in range(0, V // CHUNK):
        logits = tl.load(row_ptr + i * CHUNK + lanes).to(tl.float32)
        above = tl.where(logits > cut, _weight(logits, largest, rate, rest), 0.0)
        masses = tl.where(chunks == i, tl.sum(above.to(tl.float64)), masses)
        num_equal = tl.where(chunks == i, tl.sum((logits == cut).to(tl.int32)), num_equal)
    i = V // CHUNK
    v = i * CHUNK + lanes
    logits = tl.load(row_ptr + v, mask=v < V, other=float("-inf")).to(tl.float32)
    above = tl.where(logits > cut, _weight(logits, largest, rate, rest), 0.0)
    masses = tl.where(chunks == i, tl.sum(above.to(tl.float64)), masses)
    num_equal = tl.where(chunks == i, tl.sum((logits == cut).to(tl.int32)), num_equal)

    weight = _weight(cut, largest, rate, rest).to(tl.float64)
    num_dropped = _num_up_to(limit, below, weight, mass, tl.sum(num_equal))
    equal_before = tl.cumsum(num_equal) - num_equal
    dropped = tl.minimum(tl.maximum(num_dropped - equal_before, 0), num_equal)
    masses += (num_equal - dropped) * weight
    ends = tl.cumsum(masses)
    passed = uniform * tl.max(ends)
    chunk = tl.min(tl.where((ends > passed) & (masses > 0), chunks, NUM_CHUNKS))
    last = tl.max(tl.where(masses > 0, chunks, 0))
    chunk = tl.minimum(chunk, last)  # where rounding has left nothing behind the number
    is_before = chunks < chunk

    v = chunk * CHUNK + lanes
    logits = tl.load(row_ptr + v, mask=v < V, other=float("-inf")).to(tl.float32)
    is_equal = logits == cut
    rank = tl.sum(tl.where(is_before, num_equal, 0)) + tl.cumsum(is_equal.to(tl.int32))
    is_kept = (logits > cut) | (is_equal & (rank > num_dropped))
    weights = tl.where(is_kept, _weight(logits, largest, rate, rest), 0.0).to(tl.float64)
    cumulated = tl.sum(tl.where(is_before, masses, 0.0)) + tl.cumsum(weights)
    token_id = tl.min(tl.where((cumulated > passed) & (weights > 0), v, V))
    return tl.where(token_id < V, token_id, tl.max(tl.where(weights > 0, v, -1))).to(tl.int64)


# --- contract -------------------------------------------------------------------------------------------


def check_draw(
    logits: Tensor, token_ids: Tensor, slot_mapping: Tensor, last_token_ids: Tensor, state: SamplingState
) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    integers = {"dtype": torch.int64, "device": logits.device, "last_stride_is_1": True}
    check_tensor("logits", logits, shape=("B", "V"), last_stride_is_1=True)
    check_tensor("token_ids", token_ids, shape=(len(logits),), **integers)
    check_tensor("slot_mapping", slot_mapping, shape=(len(logits),), **integers)
    check_tensor("last_token_ids", last_token_ids, shape=("S",), **integers)
    for name, of_slots, dtype in zip(state._fields, state, DTYPES, strict=True):
        check_tensor(name, of_slots, shape=last_token_ids.shape, **integers | {"dtype": dtype})
    check_range("slot_mapping", slot_mapping, len(last_token_ids))
    check_range("token_ids", token_ids, logits.shape[1], least=-1)  # NO_TOKEN
