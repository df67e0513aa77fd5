"""The rungs of the ladder, as data: each is the rung below with one option changed."""

from dataclasses import dataclass, replace

from labkit.checks import shown
from labkit.errors import OptionError
from labkit.options import EngineOptions


@dataclass(frozen=True)
class Rung:
    """One optimization: its number, its notebook's slug, where it comes from, and the engine that has it."""

    number: str
    slug: str
    title: str
    seed: str  # the write-up it follows
    removes: str  # what leaves the hot path
    options: EngineOptions

    @property
    def notebook(self) -> str:
        return f"{self.number}_{self.slug}.ipynb"


class Ladder(dict[str, Rung]):
    """Rungs by number ("00"), in order. Raises OptionError for anything else."""

    def __init__(self, *rungs: Rung) -> None:
        super().__init__({rung.number: rung for rung in rungs})

    def __getitem__(self, number: str) -> Rung:
        if not isinstance(number, str) or number not in self:
            raise OptionError(f"there is no rung {shown(number)}; there are {', '.join(self)}, as text")
        return super().__getitem__(number)


PAGED_ENGINE = EngineOptions(
    block_tables="rebuilt", kv_append="per_token", kv_write="indexed", block_info="replaced"
)
BLOCK_TABLE_CACHE = replace(PAGED_ENGINE, block_tables="cached")
BATCHED_APPEND = replace(BLOCK_TABLE_CACHE, kv_append="batched")
TRITON_FULL_BATCH = replace(BATCHED_APPEND, kv_write="full_batch")
IDENTITY_POS = replace(TRITON_FULL_BATCH, kv_write="identity_pos")
MUTABLE_KV_BLOCK_INFO = replace(IDENTITY_POS, block_info="mutable")
DEVICE_RESIDENT_STATE = replace(MUTABLE_KV_BLOCK_INFO, block_tables="resident")
ONE_TABLE = replace(DEVICE_RESIDENT_STATE, layer_tables="shared", kv_write="fused")
CUDA_GRAPHS = replace(ONE_TABLE, launch="graph")
FUSED_AND_SPLIT = replace(CUDA_GRAPHS, layer_kernels="fused")
OVERLAP = replace(FUSED_AND_SPLIT, readback="one_behind")

LADDER = Ladder(
    Rung(
        number="00",
        slug="paged_engine",
        title="An honest paged engine",
        seed="before 036",
        removes="nothing yet: block tables are rebuilt from Python lists every step and layer, "
        "and every layer and request has its own `append_token`",
        options=PAGED_ENGINE,
    ),
    Rung(
        number="01",
        slug="block_table_cache",
        title="Block-table cache",
        seed="036",
        removes="rows of block tables rebuilt from Python lists although their blocks did not change",
        options=BLOCK_TABLE_CACHE,
    ),
    Rung(
        number="02",
        slug="batched_append",
        title="Batched append",
        seed="038",
        removes="one `append_token` call for each layer and request: there is one call a layer",
        options=BATCHED_APPEND,
    ),
    Rung(
        number="03",
        slug="triton_full_batch",
        title="Triton full-batch append",
        seed="061",
        removes="indexed assignment, and where all positions are equal the batch and position indices",
        options=TRITON_FULL_BATCH,
    ),
    Rung(
        number="04",
        slug="identity_pos",
        title="Identity-pos append",
        seed="062",
        removes="the batch index where positions differ",
        options=IDENTITY_POS,
    ),
    Rung(
        number="05",
        slug="mutable_kv_block_info",
        title="Mutable KVBlockInfo",
        seed="064",
        removes="a new `KVBlockInfo` and a dictionary write for each layer and token",
        options=MUTABLE_KV_BLOCK_INFO,
    ),
    Rung(
        number="06",
        slug="device_resident_state",
        title="Device-resident state",
        seed="037, and what 062 says comes next",
        removes="block tables, positions, lengths and token ids sent from the host in every step",
        options=DEVICE_RESIDENT_STATE,
    ),
    Rung(
        number="07",
        slug="one_table_for_all_layers",
        title="One table for all layers",
        seed="beyond the seeds",
        removes="the same bookkeeping once a layer, and the kernel that only stores keys and values",
        options=ONE_TABLE,
    ),
    Rung(
        number="08",
        slug="cuda_graphs",
        title="CUDA graphs",
        seed="beyond the seeds (040 in part)",
        removes="the launch of each kernel by the host: a step is one replay",
        options=CUDA_GRAPHS,
    ),
    Rung(
        number="09",
        slug="fused_and_split",
        title="Fused layers, split attention",
        seed="beyond the seeds",
        removes="kernels that only pass numbers on, and multiprocessors without work: five kernels a layer",
        options=FUSED_AND_SPLIT,
    ),
    Rung(
        number="10",
        slug="overlap",
        title="Overlap",
        seed="beyond the seeds",
        removes="the GPU's wait for the host: the next step is launched before this one's tokens are read; "
        "and what the host does for each request in a step in which nobody joins or ends",
        options=OVERLAP,
    ),
    Rung(
        number="11",
        slug="complete_engine",
        title="The complete engine",
        seed="beyond the seeds",
        removes="nothing: every rung, other engines and the limit side by side",
        options=OVERLAP,
    ),
)
