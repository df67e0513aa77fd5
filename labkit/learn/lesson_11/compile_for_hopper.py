"""Compile a kernel for a Hopper GPU, which need not be there, and print the machine code.

    python compile_for_hopper.py FILE KERNEL BLOCK_N K

A process of its own, which imports nothing of labkit: where there is no GPU, labkit turns Triton's
interpreter on, and a kernel of the interpreter's cannot be compiled.
"""

import runpy
import sys

POINTERS = {"x_ptr": "*fp16", "weight_ptr": "*fp16", "out_ptr": "*fp32"}


def main() -> None:
    """Print the program's machine code."""
    import triton  # there may be none, and every module of labkit can be imported
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    path, name, block_n, inputs = sys.argv[1:]
    kernel = runpy.run_path(path)[name]
    values = {"K": int(inputs), "BLOCK_N": int(block_n), "EARLY": True}
    source = ASTSource(
        kernel,
        {argument: POINTERS.get(argument, "constexpr") for argument in kernel.arg_names},
        {argument: value for argument, value in values.items() if argument in kernel.arg_names},
        {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name in POINTERS},
    )
    print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["sass"])


if __name__ == "__main__":
    main()
