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
    options: EngineOptions

    @property
    def removes(self) -> str:
        """What leaves the hot path."""
        return REMOVES[self.number]

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

REMOVES = {  # by the number of the rung: what leaves the hot path
    "00": "nothing yet",
    "01": "rows of block tables rebuilt from Python lists although their blocks did not change",
    "02": "one `append_token` call for each layer and request",
    "03": "indexed assignment, and where all slots are equal the index tensors of rows and slots",
    "04": "the index tensor of rows where slots differ",
    "05": "a new `KVBlockInfo` and a dictionary write for each layer and token",
    "06": "block tables, positions, lengths and token ids sent from the host in every step",
    "07": "the same bookkeeping once a layer, and the kernel that only stores keys and values",
    "08": "the launch of each kernel by the host",
    "09": "kernels that only pass numbers on, and multiprocessors without work",
    "10": "the GPU's wait for the host",
    "11": "the wait between dependent kernels",
    "12": "two sorts of the vocabulary for every row as soon as one request draws",
    "13": "the wait for the longest row, pads between prompts, and the stall of everybody when "
    "somebody joins",
    "14": "prompts, and parts of prompts, computed again",
    "16": "half of the bytes of keys and values",
}

LADDER = Numbered(
    "rung",
    Rung("00", "paged_engine", "An honest paged engine", PAGED_ENGINE),
    Rung("01", "block_table_cache", "Block-table cache", BLOCK_TABLE_CACHE),
    Rung("02", "batched_append", "Batched append", BATCHED_APPEND),
    Rung("03", "triton_full_batch", "Triton full-batch append", TRITON_FULL_BATCH),
    Rung("04", "identity_pos", "Identity-pos append", IDENTITY_POS),
    Rung("05", "mutable_kv_block_info", "Mutable KVBlockInfo", MUTABLE_KV_BLOCK_INFO),
    Rung("06", "device_resident_state", "Device-resident state", DEVICE_RESIDENT_STATE),
    Rung("07", "one_table_for_all_layers", "One table for all layers", ONE_TABLE),
    Rung("08", "cuda_graphs", "CUDA graphs", CUDA_GRAPHS),
    Rung("09", "fused_and_split", "Fused layers, split attention", FUSED_AND_SPLIT),
    Rung("10", "overlap", "Overlap", OVERLAP),
    Rung("11", "hidden_latency", "Hidden latency", HIDDEN_LATENCY),
    Rung("12", "sampling_without_sorts", "Sampling without sorts", SAMPLING_WITHOUT_SORTS),
    Rung("13", "ragged_batches", "Ragged batches", RAGGED_BATCHES),
    Rung("14", "block_prefix_cache", "Block prefix cache", BLOCK_PREFIX_CACHE),
    Rung("16", "eight_bit_cache", "Keys and values in 8 bits", EIGHT_BIT_CACHE),
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
OTHERS = [MODERN_MODEL, SPECULATION, SEVERAL_GPUS, SERVER, CAPSTONE]
ABOUT_RUNGS = [Lesson(rung.number, rung.slug, rung.title, rung) for rung in LADDER.values()]
LESSONS = Numbered("lesson", *sorted(ABOUT_RUNGS + OTHERS, key=lambda lesson: lesson.number))

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
