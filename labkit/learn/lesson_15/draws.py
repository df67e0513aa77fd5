"""Lesson 15: random shapes that the reader's kernels are called on, and what likely mistakes make of them.

B requests, H heads of queries, G heads of keys and values, D head size, N blocks, P positions.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.kernels import HeadTransform, NormLinear, paged_attention_append_plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_09.proofs import device, drawn

CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # sums in another order are right, too; 16 bits on the way are not
NUM_DRAWS = 5


def check_numbers(
    contract: str, where: str, made: Tensor, expected: Tensor, lookalikes: Mapping[str, Tensor], hint: str
) -> None:
    """Raise BrokenContract for the first number that is not the expected one.

    lookalikes: by a sentence, what a likely mistake makes; the sentence of one that was made is told, else
    the hint.
    """
    for place in map(tuple, (~torch.isclose(made.double(), expected.double(), **CLOSE)).nonzero().tolist()):
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


class Product(NamedTuple):
    """Rows and a layer behind a norm: x [M, K] in parts of `width` columns."""

    words: str
    x: Tensor
    layer: NormLinear
    width: int

    @property
    def mean_of_squares(self) -> Tensor:
        return self.x.double().pow(2).mean(1, keepdim=True)

    @property
    def normed(self) -> Tensor:
        """What an RMSNorm and the layer make of the rows."""
        return self.times((self.mean_of_squares + self.layer.eps).rsqrt())

    def times(self, scale: Tensor | float, mean: Tensor | float = 0.0) -> Tensor:
        """The product of the rows, less a mean and times a scale."""
        return (self.x.double() - mean) * scale @ self.layer.weight.double().T


def products(is_gated: bool) -> Iterator[Product]:
    """Random shapes, small ones first: rows of mean 0, of another mean, small ones, and a row of zeros."""
    rng = random.Random(15)
    for draw in range(NUM_DRAWS):
        M, K, N = rng.randint(2, 3), rng.randint(3, 8 + 8 * draw), 2 * rng.randint(2, 5 + 20 * draw)
        x = drawn(M, K, seed=draw)
        words = "rows of mean 0"
        if draw % 3 == 1:
            x, words = x + 3, "rows of mean 3"
        elif draw % 3 == 2:
            x, words = x / 500, "rows nearly as small as eps"
            x[0] = 0
        width = K if draw < 3 else -(-K // 3)
        weight = drawn(N, K, seed=100 + draw) * (30 if draw % 3 == 2 else 1)
        layer = NormLinear(weight.contiguous(), None, None, 1e-5, is_gated)
        yield Product(f"with x [{M}, {K}], {words}, and a weight [{N}, {K}]", x, layer, width)


def rms_lookalikes(product: Product) -> dict[str, Tensor]:
    times, squares, eps = product.times, product.mean_of_squares, product.layer.eps
    mean = product.x.double().mean(1, keepdim=True)
    spread = (squares - mean**2 + eps).rsqrt()
    return {
        "This is the product of x as it is: nothing is normalized yet.": times(1),
        "eps is missing: a row of zeros has 1 / 0.": times(squares.rsqrt()),
        "eps stands outside of the root: it is added to mean(x^2), before the root.": times(
            1 / (squares.sqrt() + eps)
        ),
        "This is a LayerNorm's: an RMSNorm takes no mean off.": times(spread, mean),
        "This divides by the deviation from the mean: `squares` are distances from each part's mean, so that "
        "mean's own square, counts * means * means, belongs to the sum.": times(spread),
        "This multiplies by the root: it divides by it.": times((squares + eps).sqrt()),
    }


# --- attention ----------------------------------------------------------------------------------------------


class Heads(NamedTuple):
    """What attention of one layer gets, for requests that have some tokens in the cache."""

    query: Tensor  # [B, H, D]
    key: Tensor  # [B, G, D]
    value: Tensor
    k_cache: Tensor  # [N, G, block_size, D]
    v_cache: Tensor
    block_table: Tensor
    context_lens: Tensor
    slot_mapping: Tensor
    transform: HeadTransform

    @property
    def words(self) -> str:
        (_, H, D), G = self.query.shape, self.key.shape[1]
        heads = f"with {H} heads of {D} values over {G} of keys and values"
        return f"{heads}, and {self.lengths.tolist()} tokens in the cache"

    @property
    def lengths(self) -> Tensor:
        """Of each row [B]."""
        return self.context_lens[self.slot_mapping]

    def attended(self, attention: Callable[..., Tensor], **changed: Any) -> tuple[Tensor, Tensor]:
        """What an attention makes of it [B, H, D], and the keys that it stores [B, G, D]."""
        copied = self._replace(k_cache=self.k_cache.clone(), v_cache=self.v_cache.clone())._replace(**changed)
        out = attention(*copied[:8], int(self.context_lens.max()), copied.transform)
        size = self.k_cache.shape[2]
        block = self.block_table[self.slot_mapping].gather(1, (self.lengths // size).long()[:, None])[:, 0]
        return out, copied.k_cache[block.long(), :, (self.lengths % size).long()]


def drawn_heads() -> Iterator[Heads]:
    """Random shapes, small ones first; from the second on there are several groups of several heads."""
    rng = random.Random(15)
    for draw in range(NUM_DRAWS):
        B = 1 + draw % 2
        G, group = (1, 2) if draw == 0 else (2, rng.randint(2, 3))
        D, size = 2 * rng.randint(1 + draw % 2, 3 + draw), rng.choice((2, 4))
        lengths = torch.tensor([rng.randint(1, 3 + 3 * draw) for _ in range(B)], dtype=torch.int32)
        M = 24 // size
        table = torch.randperm(B * M, generator=torch.Generator().manual_seed(draw)).view(B, M)
        slots = torch.arange(B).flip(0)
        positions = torch.arange(int(lengths.max()) + 2)  # the new token's, and one more
        angles = positions[:, None] / 9 ** (torch.arange(D // 2) / (D // 2))  # [P, D / 2]
        numbers = [drawn(*shape, seed=10 * draw + i) for i, shape in enumerate((
            (B, G * group, D), (B, G, D), (B, G, D), (B * M, G, size, D), (B * M, G, size, D)))]  # fmt: skip
        rest = (table.int(), lengths, slots)
        turn = HeadTransform(angles.cos().to(device()), angles.sin().to(device()))
        yield Heads(*numbers, *(each.to(device()) for each in rest), turn)


def rotation_lookalikes(heads: Heads) -> dict[str, Tensor]:
    """The key [B, G, D] that likely mistakes store."""
    cos, sin = heads.transform.cos, heads.transform.sin
    assert cos is not None and sin is not None
    c, s = (table[heads.lengths.long(), None] for table in (cos, sin))
    first, second = heads.key[..., 0::2], heads.key[..., 1::2]
    in_pairs = torch.stack([first * c - second * s, second * c + first * s], dim=-1).flatten(-2)

    def stored(cos: Tensor, sin: Tensor) -> Tensor:
        return heads.attended(paged_attention_append_plain, transform=HeadTransform(cos, sin))[1]

    return {
        "It is stored as it came: nothing is rotated, or all by the angles of position 0. The new token's "
        "position is the number of tokens in the cache.": heads.key,
        "Here neighbours, numbers 2i and 2i + 1, are rotated, as in RoPE's paper. Hugging Face's Llamas "
        "rotate number d with number d + D/2.": in_pairs,
        "It is rotated the other way: the first half has - sin, the second + sin.": stored(cos, -sin),
        "These are the angles of the next position: positions count from 0, so the new token's is the number "
        "of tokens in the cache.": stored(cos.roll(-1, 0), sin.roll(-1, 0)),
        "These are the angles of the position before.": stored(cos.roll(1, 0), sin.roll(1, 0)),
    }


def group_lookalikes(heads: Heads) -> dict[str, Tensor]:
    """The attention [B, H, D] that likely mistakes make."""
    H, G = heads.query.shape[1], heads.key.shape[1]
    dealt = torch.arange(H, device=heads.query.device) % G  # the head of keys of each query head
    keys = {"key": heads.key[:, dealt], "value": heads.value[:, dealt]}
    keys |= {"k_cache": heads.k_cache[:, dealt], "v_cache": heads.v_cache[:, dealt]}
    out, _ = heads.attended(paged_attention_append_plain, **keys)
    own, _ = heads.attended(paged_attention_append_plain, v_cache=torch.zeros_like(heads.v_cache))
    still, _ = heads.attended(paged_attention_append_plain, transform=None)
    return {
        "Nothing is rotated: fill in step 3 first.": still,
        "Here query head h reads head h % G of the keys. Heads of a group are neighbours: h reads head "
        "h // (H / G), so group g has the queries from g * GROUP on.": out,
        "Only the new token's own value is there: add weights times values to `acc` in every piece.": own,
    }
