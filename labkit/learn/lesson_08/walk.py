"""Lesson 08: what a capture asks of each line of a device's step."""

from IPython.display import Markdown

# Lines of `DeviceStep` of which a capture asks something; a test finds each in the source.
WALK = (
    (
        "slot_mapping = slots.slot_mapping[:batch_size]",
        "A view of a tensor that is there as long as the engine is: fixed address. `batch_size` becomes part "
        "of the graph: fixed shape.",
        "06: who is in the batch lies on the device. 08: a graph per bucket",
    ),
    (
        "self.attention.begin(slots, slot_mapping, max_context_len)",
        "`max_context_len` is a number of the host's, and would be that of the capture for ever. The fused "
        "kernel does not ask for it: it loops up to the length that it finds in the slot.",
        "07: the fused kernel",
    ),
    (
        "positions = slots.context_lens[slot_mapping].clamp(min=0).long()",
        "Another number in every step, from the same address: the device counts.",
        "06: lengths on the device",
    ),
    (
        "input_ids = slots.last_token_ids[slot_mapping]",
        "The token is where the last step left it, not in a Python list. In the middle of the layers no "
        "block is taken, so none can be missing: there is room already.",
        "06: last tokens on the device, and room reserved before",
    ),
    (
        "if draws == Draws.NONE:",
        "Python's `if` is asked at the capture and never again. So there is a graph for either answer.",
        "08: two families",
    ),
    (
        "return self.advance(sample_greedy(logits), slot_mapping)",
        "No token is looked at: the sampler's answer is a tensor. The host's sampler waits for numbers.",
        "06: the device's sampler",
    ),
    (
        "slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)",
        "In place: the next replay looks for it at the same address.",
        "06: state on the device",
    ),
    (
        "slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)",
        "`where`, not `if`: both answers are there, the device picks. A padding row (-1) stays one.",
        "07: padding rows, which the fused kernel stores nothing for",
    ),
)


def walk_through() -> Markdown:
    """A Markdown table of lines of `DeviceStep`: what a capture asks of each, and which rung provided it."""
    head = "| line of `DeviceStep` | what a capture makes of it | who saw to it |\n| --- | --- | --- |"
    return Markdown("\n".join([head, *(f"| `{line}` | {why} | {who} |" for line, why, who in WALK)]))
