"""What to do about an error that Triton or a GPU raises from the reader's code: a sentence."""

BRACKETS = "A kernel is launched with its grid in square brackets: `kernel[grid](...)`."
HINTS = {  # by what the error's text has in it
    "ambiguous": "Two masks are joined by `&`, with brackets around each.",  # torch, of a mask as one truth
    "arange's arguments must be": "`tl.arange` takes constants alone: what differs from program to program "
    "is added to its row.",
    "must match the size of tensor": "In a kernel a column, `[:, None]`, and a row, `[None, :]`, make a "
    "rectangle. Outside of one: the next batch may have another size.",
    "has no attribute 'scalar'": BRACKETS,  # Triton's interpreter up to 3.8
    "has no attribute 'is_ptr'": BRACKETS,  # from 3.9 on
    "outside of the scope of a kernel": BRACKETS,  # Triton's compiler
    "Unsupported ptr type": "`tl.load` and `tl.store` take a pointer; a number that a kernel is given is "
    "used as it is.",
    "stream is capturing": "In a captured step the host gets no answer from the GPU: no `.item()`, no `if` "
    "about a tensor, no `.tolist()`, no `x[mask]`.",
}


def kernel_hint(error: BaseException) -> str:
    """What helps against an error of a kernel, with a space before it; empty if nothing is known."""
    return next((f" {hint}" for text, hint in HINTS.items() if text in str(error)), "")
