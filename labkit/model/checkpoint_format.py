"""How an architecture's weights are named and stored in Hugging Face's safetensors files."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class CheckpointFormat:
    """Names are those of the network's own parameters, but for the prefix.

    A pattern is matched from a name's beginning; `transposed` and `not_weights` to its end.
    """

    prefix: str  # that a checkpoint may put before each name
    layer: re.Pattern[str]  # a layer's tensor; its first group is the layer's number
    num_layers_field: str  # of config.json
    token_table: str  # the head too, where they are tied and the head is not stored
    head: str
    transposed: re.Pattern[str]  # matrices stored [in, out], where nn.Linear has [out, in]
    not_weights: re.Pattern[str]  # buffers that old checkpoints stored, read by nothing
