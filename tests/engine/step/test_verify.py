"""A step that verifies drafts, of a model that is a table: rows that pad its batch."""

from types import SimpleNamespace

import torch

from labkit.engine.sampling import Draws
from labkit.engine.step.samplers import SearchedSampler
from labkit.engine.step.verify import PLAIN, VerifyStep
from labkit.kernels import SamplingState, draw_plain

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


def test_padding_a_batch_changes_nobodys_tokens_and_no_padding_slot():
    for draws in (Draws.NONE, Draws.PLAIN):
        alone = make_step(2, float(draws is Draws.PLAIN), [5, 6])
        padded = make_step(2, float(draws is Draws.PLAIN), [5, 6])
        assert padded(4, 0, draws)[:2].tolist() == alone(2, 0, draws).tolist()
        assert padded.slots.context_lens.tolist() == alone.slots.context_lens.tolist()
        assert padded.slots.context_lens[-1] == -1
