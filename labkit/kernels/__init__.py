"""Kernels, one family per file: a Triton kernel, its checked wrapper, and its plain-PyTorch twin."""

from labkit.kernels.attention_shares import SharePlan, plan_shares_plain, plan_shares_triton
from labkit.kernels.decode_ends import (
    embed_slots_plain,
    embed_slots_triton,
    greedy_advance_plain,
    greedy_advance_triton,
)
from labkit.kernels.distribution import SamplingState
from labkit.kernels.fused_linear import (
    NormLinear,
    RowStatistics,
    fold_layer_norm,
    fold_rms_norm,
    norm_linear_plain,
    norm_linear_triton,
)
from labkit.kernels.head_transform import HeadTransform
from labkit.kernels.kv_append import (
    kv_append_full_batch_plain,
    kv_append_identity_pos_plain,
    kv_append_plain,
    kv_append_triton,
    kv_append_triton_full_batch,
    kv_append_triton_identity_pos,
)
from labkit.kernels.linear_residual import linear_residual_plain, linear_residual_triton
from labkit.kernels.ngram_drafts import ngram_drafts_plain, ngram_drafts_triton
from labkit.kernels.packed_attention import packed_attention_plain, packed_attention_triton
from labkit.kernels.packed_prompts import PackedRows, kv_append_packed_plain, kv_append_packed_triton
from labkit.kernels.paged_attention import (
    PagedAttentionFunction,
    paged_attention_plain,
    paged_attention_triton,
)
from labkit.kernels.paged_attention_append import (
    PagedAttentionAppend,
    paged_attention_append_plain,
    paged_attention_append_triton,
)
from labkit.kernels.sampling import draw_plain, draw_triton
from labkit.kernels.shared_attention import paged_attention_append_shares_triton
from labkit.kernels.split_attention import (
    SplitWorkspace,
    num_splits,
    paged_attention_append_split_triton,
)
from labkit.kernels.triton_runtime import require_triton, triton_status
from labkit.kernels.verify_rows import (
    accept_drafts_plain,
    accept_drafts_triton,
    advance_verified_plain,
    advance_verified_triton,
    verify_rows_plain,
    verify_rows_triton,
)

__all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)]
