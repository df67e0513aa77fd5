"""vLLM, where it is installed."""

import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from labkit.bench.peers.run import CannotServeError, Peer, PeerRun, refuse_arrivals
from labkit.bench.workload import Workload

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VLLM = "vllm"


def vllm_peer(workload: Workload, reference: "PreTrainedModel") -> Peer:
    """vLLM's offline engine with the weights of `reference`, from token ids to token ids.

    Raises CannotServeError where it is not installed, and for requests that come one after another.
    """
    if find_spec("vllm") is None:
        raise CannotServeError("not installed here")
    refuse_arrivals(workload)
    from vllm import LLM, SamplingParams

    with TemporaryDirectory() as directory:
        reference.save_pretrained(directory)
        llm = LLM(
            model=str(Path(directory)),
            skip_tokenizer_init=True,
            dtype=str(workload.model.dtype).removeprefix("torch."),
            max_num_seqs=workload.scheduler.max_batch_size,
            max_model_len=workload.max_positions,
            enable_prefix_caching=workload.cache.prefix_cache,
            gpu_memory_utilization=0.4,  # the others' caches are on the same GPU
        )
    params = [
        SamplingParams(
            temperature=asked.temperature,
            top_k=asked.top_k or -1,
            top_p=asked.top_p,
            min_p=asked.min_p,
            seed=asked.seed,
            max_tokens=asked.max_new_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        for asked in (request.params for request in workload.requests)
    ]
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in workload.prompt_ids()]

    def run() -> PeerRun:
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        ended = time.perf_counter()
        return PeerRun(ended - started, None, tuple(tuple(out.outputs[0].token_ids) for out in outputs))

    return run
