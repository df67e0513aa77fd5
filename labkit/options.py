"""The options of an engine: the choices that the rungs of the ladder make."""

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints

from labkit.checks import names_its_arguments, repr_of_changes, shown
from labkit.errors import OptionError

# A choice, and what it is built on.
NEEDS = (
    (("block_tables", "resident"), ("block_info", ("mutable",))),
    (("block_tables", "resident"), ("kv_write", ("identity_pos", "fused"))),
    (("layer_tables", "shared"), ("block_tables", ("resident",))),
    (("kv_write", "fused"), ("block_tables", ("resident",))),
    (("launch", "graph"), ("kv_write", ("fused",))),
    (("layer_kernels", "fused"), ("kv_write", ("fused",))),
    (("readback", "one_behind"), ("block_tables", ("resident",))),
    (("latency", "hidden"), ("layer_kernels", ("fused",))),
    (("sampler", "searched"), ("block_tables", ("resident",))),
    (("batching", "packed"), ("layer_tables", ("shared",))),
    (("batching", "packed"), ("layer_kernels", ("fused",))),
    (("batching", "packed"), ("readback", ("one_behind",))),
    (("prefixes", "blocks"), ("layer_tables", ("shared",))),
    (("kv_cache_dtype", "int8"), ("batching", ("packed",))),
    (("kv_cache_dtype", "fp8"), ("batching", ("packed",))),
    (("speculation", "ngrams"), ("batching", ("packed",))),
    (("speculation", "ngrams"), ("kv_cache_dtype", ("auto",))),
)


@names_its_arguments(OptionError, {})
@dataclass(frozen=True)
class EngineOptions:
    """The choices that make an engine, such as a rung of the ladder; each value names the class behind it.

    block_tables: how block tables reach the kernel. "rebuilt": `RebuiltBlockTables`; "cached":
        `CachedBlockTables`; "resident": they stay there, in `DeviceSlots`, and so do lengths and last tokens;
        a `ResidentDecodeStep` then makes room before the forward, and kv_append is not asked.
    kv_append: how new keys and values reach the cache. "per_token": `AppendPerToken`;
        "batched_fast_path": `AppendBatchedFastPath`; "batched": `AppendBatched`.
    kv_write: how a batch of them is written. "indexed": `IndexedWrite`; "full_batch": `FullBatchWrite`;
        "identity_pos": `IdentityPosWrite`; "fused": by the attention kernel itself (`AttendAndWrite`).
    block_info: what a block's record is. "replaced": `KVBlockInfo` in a `KVBlockManager`; "mutable":
        `MutableKVBlockInfo` in a `MutableInfoBlockManager`.
    layer_tables: what a block table stands for. "per_layer": the blocks of one layer; "shared": those of all
        layers, which have the same place in each (`OneTableBlockManager`).
    launch: how the device is asked for a step. "eager": kernel by kernel (`DeviceStep`); "graph": by the
        replay of a CUDA graph (`GraphedStep`), where there is a GPU.
    layer_kernels: the kernels of a layer. "separate": PyTorch's operators; "fused": few kernels that do more
        each, and attention with its tokens split among programs (`FusedDeviceStep`).
    readback: when a step's tokens are read. "at_once": before anything else (`ReadAtOnce`); "one_behind":
        when the next step is in flight, with no decision for each request while none joins or ends
        (`ReadOneBehind`, `Batch`).
    latency: what runs while a kernel waits for the one before it. "exposed": nothing; "hidden": the batch's
        other half computes; or weights are on their way; or, for a single request, all layers are one
        kernel, and none waits (`LanedDeviceStep`).
    sampler: how tokens are drawn on the device. "sorted": by sorts of every row, for what top-k and top-p cut
        off (`SortedSampler`); "searched": by a search for it, in the rows that have them, with `draw_triton`
        or its plain twin (`SearchedSampler`). First tokens may be drawn while a step's are.
    batching: how rows of unequal length are put together. "padded": prompts to the longest, while nobody
        decodes (`PaddedPrefill`); "packed": prompts lie behind each other without pads (`PackedChunk`) and
        are computed in chunks beside the decode steps (`PackedPrefill`), whose attention is cut into equal
        shares of tokens (`SharedAttention`).
    prefixes: what of a text is kept for requests that begin the same. "whole_prompts": prompts, each found by
        all of its tokens (`PrefixCache`); "blocks": every full block, generated ones too, found by a chain of
        hashes, so that texts share as much of their beginning as they have in common (`BlockPrefixCache`).
    kv_cache_dtype: what keys and values are kept in. "auto": the model's dtype; "int8" and "fp8" (e4m3): 8
        bits, with a scale for each token and head (`eight_bit`). Only these change tokens. On a GPU, "fp8"
        needs compute capability 8.9.
    speculation: how many tokens a step makes. "none": one for each request; "ngrams": several where the
        request's own text foretells them: drafts are copied from behind an earlier place of its last tokens,
        verified together in one step, and kept as far as they are right (`ReadVerified`, `VerifyStep`). The
        tokens are the same.
    attention: which paged attention runs. "plain": PyTorch; "triton": the kernel;
        "auto": the kernel on a CUDA GPU, PyTorch elsewhere. The same on every rung.
    Raises OptionError for a value that is not listed, or that needs another one.
    """

    block_tables: Literal["rebuilt", "cached", "resident"] = "rebuilt"
    kv_append: Literal["per_token", "batched_fast_path", "batched"] = "per_token"
    kv_write: Literal["indexed", "full_batch", "identity_pos", "fused"] = "indexed"
    block_info: Literal["replaced", "mutable"] = "replaced"
    layer_tables: Literal["per_layer", "shared"] = "per_layer"
    launch: Literal["eager", "graph"] = "eager"
    layer_kernels: Literal["separate", "fused"] = "separate"
    readback: Literal["at_once", "one_behind"] = "at_once"
    latency: Literal["exposed", "hidden"] = "exposed"
    sampler: Literal["sorted", "searched"] = "sorted"
    batching: Literal["padded", "packed"] = "padded"
    prefixes: Literal["whole_prompts", "blocks"] = "whole_prompts"
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = "auto"
    speculation: Literal["none", "ngrams"] = "none"
    attention: Literal["auto", "plain", "triton"] = "auto"

    __repr__ = repr_of_changes

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) or value not in CHOICES[field.name]:
                allowed = ", ".join(map(repr, CHOICES[field.name]))
                raise OptionError(f"{field.name} = {shown(value)} is not an option; choose from {allowed}")
        for (name, value), (needed, values) in NEEDS:
            if getattr(self, name) == value and getattr(self, needed) not in values:
                allowed = " or ".join(map(repr, values))
                raise OptionError(f"{name} = {value!r} needs {needed} = {allowed}")


CHOICES = {name: get_args(hint) for name, hint in get_type_hints(EngineOptions).items()}
