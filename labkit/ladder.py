"""The ladder as data: its rungs, each the rung below with one option changed (07: with two), the lessons
about them, and the pages that come before some of these.

The write-ups that the rungs follow are named by number throughout; `WRITE_UPS` has their titles.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from labkit.checks import shown
from labkit.errors import OptionError
from labkit.options import EngineOptions


@dataclass(frozen=True)
class Rung:
    """One optimization: its number and title, and the options of its engine."""

    number: str
    slug: str
    title: str
    removes: str  # what leaves the hot path
    options: EngineOptions

    @property
    def is_exact(self) -> bool:
        """Whether it makes the tokens of rung 00: all do but the one that keeps keys and values in 8 bits."""
        return self.options.kv_cache_dtype == "auto"


@dataclass(frozen=True)
class Page:
    """A notebook of the course. One that is no lesson has no rung: it explains what a lesson builds on."""

    number: str
    slug: str
    title: str

    @property
    def notebook(self) -> str:
        """The notebook's file name."""
        return f"{self.number}_{self.slug}.ipynb"


@dataclass(frozen=True)
class Lesson(Page):
    """A page about a rung and its engine; the capstone's is the finished one."""

    rung: Rung


# The posts that the ladder follows: number and title, in English. They are part of the Chinese series
# "从零实现 LLM Inference" (LLM inference from scratch, https://www.wineandchord.com), about `roseinfer`, the
# engine of the public project RoseLLM. From rung 07 on, the ladder goes beyond them.
WRITE_UPS = {
    "036": "Paged attention block table cache",  # rung 01
    "037": "Paged attention slot mapping",  # 06, and what 062 says comes next
    "038": "Batched KV append fast path",  # 02
    "040": "CUDA graphs for the paged decode",  # 08, in part
    "061": "Triton KV append for the full batch",  # 03
    "062": "Triton KV append, identity-pos",  # 04
    "064": "Mutable KVBlockInfo",  # 05
}

Entry = TypeVar("Entry", bound=Rung | Page)


class Numbered(dict[str, Entry]):
    """Rungs, lessons or pages by number ("00"), in order. Raises OptionError for a number that none has."""

    def __init__(self, noun: str, *entries: Entry) -> None:
        super().__init__({entry.number: entry for entry in entries})
        self.noun = noun

    def __getitem__(self, number: str) -> Entry:
        if not isinstance(number, str) or number not in self:
            known = ", ".join(self)
            raise OptionError(f"there is no {self.noun} {shown(number)}; there are {known}, as text")
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
HIDDEN_LATENCY = replace(OVERLAP, latency="hidden")
SAMPLING_WITHOUT_SORTS = replace(HIDDEN_LATENCY, sampler="searched")
RAGGED_BATCHES = replace(SAMPLING_WITHOUT_SORTS, batching="packed")
BLOCK_PREFIX_CACHE = replace(RAGGED_BATCHES, prefixes="blocks")
EIGHT_BIT_CACHE = replace(BLOCK_PREFIX_CACHE, kv_cache_dtype="int8")

LADDER = Numbered(
    "rung",
    Rung(
        number="00",
        slug="paged_engine",
        title="An honest paged engine",
        removes="nothing yet: block tables are rebuilt from Python lists every step and layer, "
        "and every layer and request has its own `append_token`",
        options=PAGED_ENGINE,
    ),
    Rung(
        number="01",
        slug="block_table_cache",
        title="Block-table cache",
        removes="rows of block tables rebuilt from Python lists although their blocks did not change",
        options=BLOCK_TABLE_CACHE,
    ),
    Rung(
        number="02",
        slug="batched_append",
        title="Batched append",
        removes="one `append_token` call for each layer and request: there is one call a layer",
        options=BATCHED_APPEND,
    ),
    Rung(
        number="03",
        slug="triton_full_batch",
        title="Triton full-batch append",
        removes="indexed assignment, and where all positions are equal the batch and position indices",
        options=TRITON_FULL_BATCH,
    ),
    Rung(
        number="04",
        slug="identity_pos",
        title="Identity-pos append",
        removes="the batch index where positions differ",
        options=IDENTITY_POS,
    ),
    Rung(
        number="05",
        slug="mutable_kv_block_info",
        title="Mutable KVBlockInfo",
        removes="a new `KVBlockInfo` and a dictionary write for each layer and token",
        options=MUTABLE_KV_BLOCK_INFO,
    ),
    Rung(
        number="06",
        slug="device_resident_state",
        title="Device-resident state",
        removes="block tables, positions, lengths and token ids sent from the host in every step",
        options=DEVICE_RESIDENT_STATE,
    ),
    Rung(
        number="07",
        slug="one_table_for_all_layers",
        title="One table for all layers",
        removes="the same bookkeeping once a layer, and the kernel that only stores keys and values",
        options=ONE_TABLE,
    ),
    Rung(
        number="08",
        slug="cuda_graphs",
        title="CUDA graphs",
        removes="the launch of each kernel by the host: a step is one replay",
        options=CUDA_GRAPHS,
    ),
    Rung(
        number="09",
        slug="fused_and_split",
        title="Fused layers, split attention",
        removes="kernels that only pass numbers on, and multiprocessors without work: five kernels per layer",
        options=FUSED_AND_SPLIT,
    ),
    Rung(
        number="10",
        slug="overlap",
        title="Overlap",
        removes="the GPU's wait for the host: the next step is launched before this one's tokens are read; "
        "and what the host does for each request in a step in which nobody joins or ends",
        options=OVERLAP,
    ),
    Rung(
        number="11",
        slug="hidden_latency",
        title="Hidden latency",
        removes="the wait between dependent kernels: one or two requests go through all layers in one, and "
        "products have their weights before the kernel in front has ended; on GPUs where that is not "
        "possible, half of a large batch computes while the other half reads memory",
        options=HIDDEN_LATENCY,
    ),
    Rung(
        number="12",
        slug="sampling_without_sorts",
        title="Sampling without sorts",
        removes="two sorts of the vocabulary for every row as soon as one request draws: where top-k and "
        "top-p cut is searched for, in the rows that draw",
        options=SAMPLING_WITHOUT_SORTS,
    ),
    Rung(
        number="13",
        slug="ragged_batches",
        title="Ragged batches",
        removes="the wait for the longest row, pads between prompts, and the stall of everybody when "
        "somebody joins: prompts are computed in chunks beside the decode steps",
        options=RAGGED_BATCHES,
    ),
    Rung(
        number="14",
        slug="block_prefix_cache",
        title="Block prefix cache",
        removes="prompts, and parts of prompts, computed again",
        options=BLOCK_PREFIX_CACHE,
    ),
    Rung(
        number="16",
        slug="eight_bit_cache",
        title="Keys and values in 8 bits",
        removes="half of the bytes of keys and values: nearly twice as many tokens fit. It is the one rung "
        "whose tokens are not exactly those of the rung below",
        options=EIGHT_BIT_CACHE,
    ),
)

# What an engine is unless a rung is asked for: the last one whose tokens are exact.
FINISHED = LADDER["14"]

# These lessons are no rungs: they change no option, or (17) one that cannot stand on rung 16. The last one
# looks back.
MODERN_MODEL = Lesson("15", "modern_model", "A modern model", rung=FINISHED)
SPECULATION = Lesson("17", "speculation", "Speculation by n-grams", rung=FINISHED)
SEVERAL_GPUS = Lesson("18", "several_gpus", "Several GPUs", rung=FINISHED)
SERVER = Lesson("19", "server", "The server", rung=FINISHED)
CAPSTONE = Lesson("20", "complete_engine", "The complete engine", rung=FINISHED)
LESSONS = Numbered(
    "lesson",
    *sorted(
        (
            *(Lesson(rung.number, rung.slug, rung.title, rung) for rung in LADDER.values()),
            *(MODERN_MODEL, SPECULATION, SEVERAL_GPUS, SERVER, CAPSTONE),
        ),
        key=lambda lesson: lesson.number,
    ),
)

# Before a lesson, and named after it: what that lesson takes for granted of a GPU.
PAGES = Numbered(
    "page",
    Page("before_00", "how_a_cpu_drives_a_gpu", "How a CPU drives a GPU"),
    Page("before_03", "how_a_gpu_runs_a_kernel", "How a GPU runs a kernel"),
)


def all_pages() -> list[Page]:
    """Every notebook of the course, in the order in which they are read: a page comes before its lesson."""
    pages = (*PAGES.values(), *LESSONS.values())  # sorting is stable
    return sorted(pages, key=lambda page: page.number.removeprefix("before_"))
