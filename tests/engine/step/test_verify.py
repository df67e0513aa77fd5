"""A step that verifies drafts, of a model that is a table: what it draws, and where it leaves the slots."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from labkit.engine.sampling import Draws, sample_any
from labkit.engine.step.samplers import SearchedSampler
from labkit.engine.step.verify import PLAIN, VerifyStep
from labkit.kernels import SamplingState, draw_plain
from labkit.kernels.verify_rows import NOT_MADE

V, S = 5, 5  # tokens, and slots, of which the last is the padding slot
LOGITS = torch.randn(V, V, generator=torch.Generator().manual_seed(3))  # of what comes after each token
TEXT = [0, 1, 2, 3, 0, 1, 2, 3, 0]  # foretells 1, 2, 3, 0


class Table:
    """Layers whose logits depend on a row's token alone."""

    def begin_chunk(self, rows):
        self.rows = rows

    def chunk_logits(self, token_ids, positions):
        assert len(token_ids) == self.rows.starts[-1]  # on a CPU no pad is computed
        self.token_ids, self.positions = token_ids, positions
        return LOGITS[token_ids].clone()


def make_step(num_requests: int, temperature: float, seeds: list[int], text: list[int] = TEXT) -> VerifyStep:
    """Each request's text is this one, and its next token is the one of that number in its seed's stream."""
    mapping = torch.tensor([*range(num_requests), *[S - 1] * (S - 1 - num_requests)])
    filled = {"temperatures": temperature, "top_ps": 1.0, "min_ps": 0.0}
    columns = {name: torch.full((S,), value, dtype=torch.float64) for name, value in filled.items()}
    state = SamplingState(
        **columns,
        top_ks=torch.zeros(S, dtype=torch.int64),
        seeds=torch.tensor([*seeds, *[0] * (S - len(seeds))]),
        draws=torch.full((S,), len(text)),
    )
    slots = SimpleNamespace(
        slot_mapping=mapping,
        context_lens=torch.tensor([len(text) - 1] * (S - 1) + [-1], dtype=torch.int32),
        last_token_ids=torch.full((S,), text[-1]),
        block_tables=torch.zeros(1, S, 8, dtype=torch.int32),
        sampling_state=state,
    )
    step = VerifyStep(Table(), slots, SearchedSampler(draw_plain), PLAIN, width=32)
    step.texts[:, : len(text)] = torch.tensor(text, dtype=torch.int32)
    step.limits.fill_(4)
    step.ends.fill_(99)
    return step


def one_by_one(seed: int, temperature: float, num_tokens: int) -> list[int]:
    """What a request of this seed draws without drafts."""
    made = [TEXT[-1]]
    for i in range(num_tokens):
        numbers = (temperature, 0, 1.0, 0.0, seed, len(TEXT) + i)
        state = SamplingState(*(torch.tensor([number]) for number in numbers))
        state = state._replace(temperatures=state.temperatures.double(), top_ps=state.top_ps.double())
        made += sample_any(LOGITS[made[-1:]], state).tolist()
    return made[1:]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_tokens_are_those_drawn_one_by_one_and_the_slots_follow_them(temperature):
    lengths = Counter()
    for first in range(0, 160, 4):
        seeds = list(range(first, first + 4))
        step = make_step(4, temperature, seeds)
        made = step(4, 0, Draws.NONE if temperature == 0 else Draws.PLAIN).tolist()
        for b, seed in enumerate(seeds):
            *row, num_drafts = made[b]
            tokens = [token_id for token_id in row if token_id != NOT_MADE]
            assert num_drafts == 4
            assert tokens == one_by_one(seed, temperature, len(tokens))
            assert tokens[:-1] == [1, 2, 3, 0][: len(tokens) - 1]
            assert len(tokens) == 5 or tokens[-1] != [1, 2, 3, 0][len(tokens) - 1]
            lengths[len(tokens)] += 1
            num_tokens = len(TEXT) + len(tokens)
            assert step.slots.context_lens[b] == num_tokens - 1
            assert step.slots.last_token_ids[b] == tokens[-1]
            assert step.slots.sampling_state.draws[b] == num_tokens
            assert step.texts[b, :num_tokens].tolist() == [*TEXT, *tokens]
    assert len(lengths) >= (1 if temperature == 0 else 3)


def test_padding_a_batch_changes_nobodys_tokens_and_no_padding_slot():
    for draws in (Draws.NONE, Draws.PLAIN):
        alone = make_step(2, float(draws is Draws.PLAIN), [5, 6])
        padded = make_step(2, float(draws is Draws.PLAIN), [5, 6])
        assert padded(4, 0, draws)[:2].tolist() == alone(2, 0, draws).tolist()
        assert padded.slots.context_lens.tolist() == alone.slots.context_lens.tolist()
        assert padded.slots.context_lens[-1] == -1
