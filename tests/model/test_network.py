"""Network: what it does for every architecture, and what it says where one gives nothing."""

import pytest
import torch
from torch import Tensor, nn

from labkit.errors import OptionError
from labkit.model import GPT2Config, Network, PastKV

CONFIG = GPT2Config(vocab_size=5, n_positions=6, n_embd=4, n_layer=1, n_head=2)


class Echo(Network):
    """A hidden state is its token id and its position; one layer attends with them in each head."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.lm_head = nn.Linear(4, 5, bias=False)
        nn.init.zeros_(self.lm_head.weight)
        self.lm_head.weight.data[0, 0] = self.lm_head.weight.data[1, 1] = 1.0  # logits 0 and 1 show them
        self.seen: list[Tensor] = []

    def forward(self, input_ids: Tensor, positions: Tensor, attend) -> Tensor:
        self.seen.append(positions)
        B, T = input_ids.shape
        x = torch.stack([input_ids, positions, 0 * positions, 0 * positions], dim=2).float()
        heads = x.view(B, T, 2, 2).transpose(1, 2)
        attend(0, heads, heads, heads)
        return x


@pytest.fixture
def echo() -> Echo:
    return Echo().requires_grad_(False)


def test_a_prefill_takes_the_last_real_token_of_each_row(echo):
    made = echo.prefill(torch.tensor([[4, 3, 2], [1, 9, 9]]), torch.tensor([3, 1]))
    assert made.last_logits[:, :2].tolist() == [[2, 2], [1, 0]]  # token and position
    assert made.keys.shape == made.values.shape == (1, 2, 2, 3, 2)
    assert made.keys[0, 0, 0, :, 0].tolist() == [4, 3, 2]


def test_with_a_past_positions_continue_after_it_and_pads_stay_inside_of_the_model(echo):
    past = PastKV(torch.zeros(1, 2, 2, 4, 2), torch.zeros(1, 2, 2, 4, 2), torch.tensor([4, 2]))
    made = echo.prefill(torch.tensor([[1, 2, 9], [3, 4, 1]]), torch.tensor([2, 3]), past)
    assert echo.seen[0].tolist() == [[4, 5, 5], [2, 3, 4]]  # a pad would be at position 6 of 6
    assert made.last_logits[:, :2].tolist() == [[2, 5], [1, 4]]


def test_a_decode_step_is_one_token_per_row(echo):
    shapes = []
    logits = echo.decode_one_token(
        torch.tensor([3, 1]), torch.tensor([5, 0]), lambda i, q, k, v: shapes.append((i, q.shape))
    )
    assert logits[:, :2].tolist() == [[3, 5], [1, 0]]
    assert shapes == [(0, (2, 2, 1, 2))]


def test_it_is_where_its_weights_are_and_in_their_dtype(echo):
    assert (echo.dtype, echo.device) == (torch.float32, torch.device("cpu"))
    assert (echo.half().dtype, echo.to("meta").device.type) == (torch.float16, "meta")


def test_what_an_architecture_does_not_give_is_refused_by_its_name(echo):
    with pytest.raises(OptionError, match=r"layer_kernels = 'fused' .* does not fit Echo: its layers"):
        echo.decoder_weights()
    with pytest.raises(OptionError, match=r"^Echo cannot be made a model of transformers$"):
        echo.as_transformers()
    for undefined in (echo.lookup_tables, lambda: Echo.read_config({}), lambda: Echo.stored_shapes(CONFIG)):
        with pytest.raises(NotImplementedError):
            undefined()


def test_nothing_is_tied_unless_the_architecture_says_so(echo):
    before = echo.lm_head.weight
    echo.tie_weights()
    assert echo.lm_head.weight is before
