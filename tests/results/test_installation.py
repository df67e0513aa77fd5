"""What an installation takes."""

from labkit.results.installation import load_installations


def test_there_is_one_with_cuda_and_one_without_which_is_smaller():
    cuda, cpu = load_installations()
    assert (cuda.brings, cpu.brings) == ("with CUDA", "for a CPU")
    assert "+cu" in cuda.torch and cpu.torch.endswith("+cpu") and cpu.gigabytes < cuda.gigabytes
    assert str(cpu).startswith(f"{cpu.gigabytes} GB of disk (torch {cpu.torch}, ")
