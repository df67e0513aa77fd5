"""How tokens are drawn without a sort: temperature, top-k and top-p by a search for the number where they cut.

B rows, V vocabulary, S slots. Tokens are ordered by score, and among equal scores by id. A cut is where the
weight of the tokens up to there first passes a limit: with a weight of 1 each, the k-th largest; with their
probabilities, the token that crosses p. A search for it asks for the weight up to a guess, again and again.

The same tokens are kept as by `labkit.engine.sampling.warp`, whose sort is stable: of those that tie with the
token that crosses p, the ones of lower id go first.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton

LOGITS_PER_PROGRAM = 1024
NUM_WARPS = 1  # a sum of a program's logits then needs no shared memory
FLOAT32 = torch.finfo(torch.float32)
BRACKET = ("low", "high", "below", "mass", "floor")  # what a round of a search begins with


class SamplingState(NamedTuple):
    """What each slot draws with: tensors [S].

    temperatures: float64; 0 for a slot that does not draw. top_ks: int64; 0 for off. top_ps: float64; 1 for
    off. seeds: int64, a seed's lowest 64 bits. draws: int64, the random numbers drawn so far.
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    seeds: Tensor
    draws: Tensor


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

    token_ids: the likeliest token of each row, or NO_TOKEN; a row without a token gets none. Changes in place:
    `token_ids` and the slots' last tokens, where a token is drawn, and `state.draws`, by 1 for each row.
    is_filtered: whether any row has top-k or top-p; if not, nothing is searched for.
    Plain PyTorch: the oracle of `draw_triton`. The tokens are those of `labkit.engine.sampling.sample_any`,
    unless rounding decides what top-p drops. Raises ValueError for arguments that do not fit.
    """
    from labkit.engine.sampling import pick, uniform_numbers  # the engine imports this module

    check_draw(logits, token_ids, slot_mapping, last_token_ids, state)
    temperatures, top_ks, top_ps, seeds, draws = (of_slots[slot_mapping] for of_slots in state)
    scores = logits.float() - logits.amax(dim=-1, keepdim=True)
    scores /= temperatures.clamp(FLOAT32.tiny, FLOAT32.max).float()[:, None]
    if is_filtered:
        scores = scores.masked_fill(~kept_by_top_k(scores, top_ks), -torch.inf)
        scores = scores.masked_fill(~kept_by_top_p(scores, top_ps), -torch.inf)
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


def ordered(scores: Tensor) -> Tensor:
    """Whole numbers in the order of float32 numbers: their bits, those of negative ones turned around."""
    bits = (scores + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()


# --- as kernels -----------------------------------------------------------------------------------------


def draw_triton(
    logits: Tensor,
    token_ids: Tensor,
    slot_mapping: Tensor,
    last_token_ids: Tensor,
    state: SamplingState,
    is_filtered: bool,
) -> None:
    """Draw a token in each row whose slot has a temperature, in two kernels; with filters, in eight more (16
    for float32), each of which asks for the weight up to 16 guesses at once. A row is split among programs;
    those of other rows leave at once.

    Takes what `draw_plain` takes, and draws its tokens up to rounding. Equal are logits here, not scores.
    Raises ValueError for arguments that do not fit, and TritonUnavailableError where no kernel runs.
    """
    check_draw(logits, token_ids, slot_mapping, last_token_ids, state)
    check_launchable(logits.device)
    B, V = logits.shape
    num_pieces = triton.cdiv(V, LOGITS_PER_PROGRAM)
    rows = (logits, V, logits.stride(0), token_ids, slot_mapping, *state)
    blocks = {"PIECE": LOGITS_PER_PROGRAM, "PIECES": triton.next_power_of_2(num_pieces)}
    launch = early_launch(logits.device)
    brackets = weights = None
    num_rounds = 4 if logits.dtype.itemsize == 2 else 8
    if is_filtered:
        brackets = torch.empty(2, num_rounds, B, len(BRACKET), dtype=torch.float64, device=logits.device)
        weights = torch.empty(2, num_rounds, B, num_pieces, 16, dtype=torch.float32, device=logits.device)
        for is_top_p in (False, True):
            for i in range(num_rounds):
                _weigh_kernel[(num_pieces, B)](
                    *rows, brackets, weights, num_rounds, i, IS_TOP_P=is_top_p, num_warps=NUM_WARPS, **blocks, **launch
                )
    masses = torch.empty(B, num_pieces, dtype=torch.float64, device=logits.device)
    num_equal = torch.empty(B, num_pieces, dtype=torch.int32, device=logits.device)
    search = (brackets, weights, num_rounds)
    _add_up_kernel[(num_pieces, B)](
        *rows, *search, masses, num_equal, IS_FILTERED=is_filtered, num_warps=NUM_WARPS, **blocks, **launch
    )
    _pick_kernel[(B,)](
        *rows, *search, masses, num_equal, last_token_ids, num_pieces, IS_FILTERED=is_filtered, **blocks, **launch
    )


@triton.jit
def _weigh_kernel(
    logits_ptr,
    V,
    logits_stride_b,
    token_ids_ptr,
    slot_mapping_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    seeds_ptr,
    draws_ptr,
    brackets_ptr,
    weights_ptr,
    num_rounds,
    i,
    IS_TOP_P: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Round i of a search: the weight of a piece's logits up to each of 16 guesses."""
    piece = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    slot = tl.load(slot_mapping_ptr + b)
    temperature = tl.load(temperatures_ptr + slot)
    likeliest = tl.load(token_ids_ptr + b)
    has_top_k, top_k_limit, has_top_p, top_p_limit = _filters(top_ks_ptr, top_ps_ptr, slot, V)
    has_filter = has_top_k
    limit = top_k_limit
    if IS_TOP_P:
        has_filter = has_top_p
        limit = top_p_limit
    if (temperature > 0) & (likeliest >= 0) & has_filter:
        B, num_pieces = tl.num_programs(1), tl.num_programs(0)
        row_ptr = logits_ptr + b * logits_stride_b
        element: tl.constexpr = logits_ptr.dtype.element_ty
        largest = tl.load(row_ptr + likeliest).to(tl.float32)
        place = (IS_TOP_P * num_rounds + i) * B + b  # of this round's bracket and weights
        if i > 0:
            low, high, below, mass, floor = _narrowed(
                brackets_ptr, weights_ptr, place - B, limit, num_pieces, element, PIECES
            )
        else:
            floor = largest * 0 - 3.4028234663852886e38  # what is not below it is kept: all but -inf
            mass = tl.full([], 1.0, tl.float64)
            if IS_TOP_P:
                mass = tl.zeros([], tl.float64)  # not known yet
                if has_top_k:
                    end = (num_rounds - 1) * B + b
                    _, kth, _, _, _ = _narrowed(
                        brackets_ptr, weights_ptr, end, top_k_limit, num_pieces, element, PIECES
                    )
                    floor = _logit(kth, element)
            below = tl.zeros([], tl.float64)
            low = _key(floor, element) - 1
            high = _key(largest, element)
        if piece == 0:
            bracket_ptr = brackets_ptr + place * 5
            tl.store(bracket_ptr, low.to(tl.float64))
            tl.store(bracket_ptr + 1, high.to(tl.float64))
            tl.store(bracket_ptr + 2, below)
            tl.store(bracket_ptr + 3, mass)
            tl.store(bracket_ptr + 4, floor.to(tl.float64))
        logits = _piece_of(row_ptr, piece * PIECE, V, PIECE)
        if IS_TOP_P:
            rate, rest = _rate(temperature)
            numbers = tl.where(logits >= floor, _weight(logits, largest, rate, rest), 0.0)
        else:
            numbers = tl.where(logits < float("inf"), 1.0, 0.0)  # infinity stands behind the row
        for guess in tl.static_range(16):
            up_to = _logit(_guessed(low, high, guess), element)
            weight = tl.sum(tl.where(logits <= up_to, numbers, 0.0))
            tl.store(weights_ptr + (place * num_pieces + piece) * 16 + guess, weight)


@triton.jit
def _add_up_kernel(
    logits_ptr,
    V,
    logits_stride_b,
    token_ids_ptr,
    slot_mapping_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    seeds_ptr,
    draws_ptr,
    brackets_ptr,
    weights_ptr,
    num_rounds,
    masses_ptr,
    num_equal_ptr,
    IS_FILTERED: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The weight of a piece's logits above the cut, and how many are equal to it."""
    piece = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    slot = tl.load(slot_mapping_ptr + b)
    temperature = tl.load(temperatures_ptr + slot)
    likeliest = tl.load(token_ids_ptr + b)
    if (temperature > 0) & (likeliest >= 0):
        B, num_pieces = tl.num_programs(1), tl.num_programs(0)
        row_ptr = logits_ptr + b * logits_stride_b
        element: tl.constexpr = logits_ptr.dtype.element_ty
        largest = tl.load(row_ptr + likeliest).to(tl.float32)
        rate, rest = _rate(temperature)
        cut = largest * 0 - 3.4028234663852886e38
        if IS_FILTERED:
            has_top_k, top_k_limit, has_top_p, top_p_limit = _filters(top_ks_ptr, top_ps_ptr, slot, V)
            cut, _, _ = _cut(
                brackets_ptr,
                weights_ptr,
                b,
                B,
                num_rounds,
                num_pieces,
                cut,
                has_top_k,
                top_k_limit,
                has_top_p,
                top_p_limit,
                element,
                PIECES,
            )
        logits = _piece_of(row_ptr, piece * PIECE, V, PIECE)
        is_above = (logits > cut) & (logits < float("inf"))
        above = tl.where(is_above, _weight(logits, largest, rate, rest), 0.0)
        tl.store(masses_ptr + b * num_pieces + piece, tl.sum(above.to(tl.float64)))
        tl.store(num_equal_ptr + b * num_pieces + piece, tl.sum((logits == cut).to(tl.int32)))


@triton.jit
def _pick_kernel(
    logits_ptr,
    V,
    logits_stride_b,
    token_ids_ptr,
    slot_mapping_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    seeds_ptr,
    draws_ptr,
    brackets_ptr,
    weights_ptr,
    num_rounds,
    masses_ptr,
    num_equal_ptr,
    last_token_ids_ptr,
    num_pieces,
    IS_FILTERED: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The first token at which the cumulated weight of those that are kept passes the random number's share.

    Kept are logits above the cut, and those equal to it but for the first few.
    """
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
        B = tl.num_programs(0)
        row_ptr = logits_ptr + b * logits_stride_b
        element: tl.constexpr = logits_ptr.dtype.element_ty
        largest = tl.load(row_ptr + likeliest).to(tl.float32)
        rate, rest = _rate(temperature)
        pieces = tl.arange(0, PIECES)
        there = pieces < num_pieces
        masses = tl.load(masses_ptr + b * num_pieces + pieces, mask=there, other=0.0)
        num_equal = tl.load(num_equal_ptr + b * num_pieces + pieces, mask=there, other=0)
        cut = largest * 0 - 3.4028234663852886e38
        weight = _weight(cut, largest, rate, rest).to(tl.float64)
        num_dropped = tl.zeros([], tl.int32)  # of those equal to the cut
        if IS_FILTERED:
            has_top_k, top_k_limit, has_top_p, top_p_limit = _filters(top_ks_ptr, top_ps_ptr, slot, V)
            cut, below, mass = _cut(
                brackets_ptr,
                weights_ptr,
                b,
                B,
                num_rounds,
                num_pieces,
                cut,
                has_top_k,
                top_k_limit,
                has_top_p,
                top_p_limit,
                element,
                PIECES,
            )
            weight = _weight(cut, largest, rate, rest).to(tl.float64)
            if has_top_p:
                num_dropped = _num_up_to(top_p_limit, below, weight, mass, tl.sum(num_equal))
        equal_before = tl.cumsum(num_equal) - num_equal
        dropped = tl.minimum(tl.maximum(num_dropped - equal_before, 0), num_equal)
        masses += (num_equal - dropped) * weight
        ends = tl.cumsum(masses)
        share = _uniform_number(tl.load(seeds_ptr + slot), index) * tl.max(ends)
        piece = tl.min(tl.where((ends > share) & (masses > 0), pieces, PIECES))
        piece = tl.minimum(piece, tl.max(tl.where(masses > 0, pieces, 0)))  # if rounding left none behind it

        v = piece * PIECE + tl.arange(0, PIECE)
        logits = _piece_of(row_ptr, piece * PIECE, V, PIECE)
        is_equal = logits == cut
        rank = tl.sum(tl.where(pieces < piece, num_equal, 0)) + tl.cumsum(is_equal.to(tl.int32))
        is_kept = ((logits > cut) & (logits < float("inf"))) | (is_equal & (rank > num_dropped))
        kept = tl.where(is_kept, _weight(logits, largest, rate, rest), 0.0).to(tl.float64)
        cumulated = tl.sum(tl.where(pieces < piece, masses, 0.0)) + tl.cumsum(kept)
        token_id = tl.min(tl.where((cumulated > share) & (kept > 0), v, V))
        token_id = tl.where(token_id < V, token_id, tl.max(tl.where(kept > 0, v, 0))).to(tl.int64)
        tl.store(token_ids_ptr + b, token_id)
        tl.store(last_token_ids_ptr + slot, token_id)


# --- what they share ------------------------------------------------------------------------------------


@triton.jit
def _filters(top_ks_ptr, top_ps_ptr, slot, V):
    """Whether a slot has top-k, the number of tokens that it drops if none tie; the same of top-p, and the
    probability that it drops at most."""
    top_k = tl.load(top_ks_ptr + slot)
    top_p = tl.load(top_ps_ptr + slot)
    return (top_k > 0) & (top_k < V), (V - top_k).to(tl.float32), top_p < 1, (1 - top_p).to(tl.float32)


@triton.jit
def _piece_of(row_ptr, start, V, PIECE: tl.constexpr):
    """A piece of a row's logits, with infinity behind the last."""
    v = start + tl.arange(0, PIECE)
    if start + PIECE <= V:  # without a mask, a load is of many numbers
        logits = tl.load(row_ptr + v).to(tl.float32)
    else:
        logits = tl.load(row_ptr + v, mask=v < V, other=float("inf")).to(tl.float32)
    return logits


@triton.jit
def _guessed(low, high, guess):
    """The key of a guess, 0 to 15: they are spread evenly, and the last one is the upper end."""
    step = (high - low + 15) // 16
    return tl.minimum(low + (guess + 1) * step, high)


@triton.jit
def _narrowed(
    brackets_ptr, weights_ptr, place, limit, num_pieces, element: tl.constexpr, PIECES: tl.constexpr
):
    """What a round has left of its bracket: keys between which the weight first is above the limit, the weight
    up to the lower one, that of all, and the smallest logit that counts."""
    bracket_ptr = brackets_ptr + place * 5
    low = tl.load(bracket_ptr).to(tl.int64)
    high = tl.load(bracket_ptr + 1).to(tl.int64)
    below = tl.load(bracket_ptr + 2)
    mass = tl.load(bracket_ptr + 3)
    floor = tl.load(bracket_ptr + 4).to(tl.float32)
    pieces = tl.arange(0, PIECES)[:, None]
    guesses = tl.arange(0, 16)
    places = (place * num_pieces + pieces) * 16 + guesses[None, :]
    of_pieces = tl.load(weights_ptr + places, mask=pieces < num_pieces, other=0.0)
    weights = tl.sum(of_pieces.to(tl.float64), axis=0)
    mass = tl.where(mass > 0, mass, tl.max(weights))  # the last guess of the first round is the largest logit
    keys = _guessed(low, high, guesses)
    is_above = ((weights / mass).to(tl.float32) > limit) | (keys == high)
    below = tl.maximum(below, tl.max(tl.where(is_above, 0.0, weights)))
    new_low = tl.max(tl.where(is_above, low, keys))
    return new_low, tl.min(tl.where(is_above, keys, high)), below, mass, floor


@triton.jit
def _cut(
    brackets_ptr,
    weights_ptr,
    b,
    B,
    num_rounds,
    num_pieces,
    floor,
    has_top_k,
    top_k_limit,
    has_top_p,
    top_p_limit,
    element: tl.constexpr,
    PIECES: tl.constexpr,
):
    """The logit where a row is cut off, the weight below it, and that of all; the floor if nothing is."""
    cut = floor
    below = tl.zeros([], tl.float64)
    mass = tl.full([], 1.0, tl.float64)
    if has_top_p:
        end = (2 * num_rounds - 1) * B + b
        _, key, below, mass, _ = _narrowed(
            brackets_ptr, weights_ptr, end, top_p_limit, num_pieces, element, PIECES
        )
        cut = _logit(key, element)
    elif has_top_k:
        end = (num_rounds - 1) * B + b
        _, key, below, mass, _ = _narrowed(
            brackets_ptr, weights_ptr, end, top_k_limit, num_pieces, element, PIECES
        )
        cut = _logit(key, element)
    return cut, below, mass


@triton.jit
def _num_up_to(limit, below, weight, mass, num_equal):
    """How many tokens of the same weight leave the weight up to them, divided by mass, at or under a limit: not
    all of them."""
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
def _rate(temperature):
    """What a difference of logits is multiplied by to be an exponent of 2, as the sum of two float32: one
    rounded down, and the rest, which is not negative."""
    rounded = tl.minimum(tl.maximum(temperature, 1.1754943508222875e-38), 3.4028234663852886e38)
    exact = 1.4426950408889634 / rounded.to(tl.float32).to(tl.float64)
    rate = (exact * (1 - 2.0**-24)).to(tl.float32)
    return rate, (exact - rate.to(tl.float64)).to(tl.float32)


@triton.jit
def _weight(logits, largest, rate, rest):
    """The probability of a logit, divided by that of the largest."""
    apart = logits - largest
    return tl.exp2(tl.fma(apart, rest, apart * rate))


@triton.jit
def _key(logit, element: tl.constexpr):
    """A whole number for a logit, in the order of the logits and without a gap between two of them."""
    if element.primitive_bitwidth == 16:
        bits = logit.to(element).to(tl.int16, bitcast=True).to(tl.int64)
        return tl.where(bits < 0, bits ^ 0x7FFF, bits)
    bits = logit.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _logit(key, element: tl.constexpr):
    """The logit of a key, in float32."""
    if element.primitive_bitwidth == 16:
        bits = tl.where(key < 0, key ^ 0x7FFF, key).to(tl.int16)
        return bits.to(element, bitcast=True).to(tl.float32)
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _uniform_number(seed, index):
    """`labkit.engine.sampling.uniform_number` of a seed's 64 bits and an index."""
    step = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    state = _mixed(seed.to(tl.uint64, bitcast=True)) + (index + 1).to(tl.uint64) * step
    return (_mixed(state) >> 11).to(tl.float64) * 2.0**-53


@triton.jit
def _mixed(z):
    z = (z ^ (z >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return z ^ (z >> 31)


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
    for name, of_slots in state._asdict().items():
        dtype = torch.float64 if name in ("temperatures", "top_ps") else torch.int64
        check_tensor(name, of_slots, shape=last_token_ids.shape, **integers | {"dtype": dtype})
    check_range("slot_mapping", slot_mapping, len(last_token_ids))
    check_range("token_ids", token_ids + 1, logits.shape[1] + 1)  # NO_TOKEN is one less
