"""Lesson 01's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

ROWS, TWO_NUMBERS, ONE_CALL = range(3)
BY_CONTENT = 'self.__dict__.setdefault("all", {}).setdefault(tuple(session.block_ids_per_layer[0]), {})'
FILL = """            rows = [self.row(session, layer_idx, offset) for session in sessions]
            block_tables_cpu[layer_idx].copy_(torch.tensor(rows, dtype=torch.int32))"""
NEW_ROWS = """            for b, session in enumerate(sessions):
                num_made, size = self.num_made, getattr(self, "size", 0)
                row = self.row(session, layer_idx, offset)
                if self.num_made > num_made or size != len(sessions):
                    block_tables_cpu[layer_idx, b] = torch.tensor(row)
        self.size = len(sessions)"""
LAST_LAYERS = "block_tables_cpu.copy_(torch.stack(rows))"
MISTAKES = [
    (ROWS, "block_id - offset for", "block_id for", "entry 0 names block 12, expected 0."),
    (ROWS, "[0] * (", "[-1] * (", "names block -1, expected 0."),
    (ROWS, FILL, NEW_ROWS, "session B (row 0), entry 0 names block 0"),
    (ONE_CALL, "torch.stack(rows, out=block_tables_cpu[layer_idx])", LAST_LAYERS, "its layers found layer 0"),
    (ROWS, "self.row(session, layer_idx, offset)", "self.row(session, 0, 0)", "its layers found layer 1"),
    (ROWS, "self.kept.setdefault(session, {})", BY_CONTENT, ""),
    (TWO_NUMBERS, "(len(block_ids), block_ids[-1] if block_ids else -1)", "len(block_ids)", "Make a row aga"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "01_block_table_cache.ipynb", MISTAKES
)
