import pytest

from llmprof.errors import LlmprofError
from llmprof.theory import hardware


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("Ascend910B", "Ascend 910B"),
        ("Ascend910B2", "Ascend 910B2"),
        ("Ascend910B3", "Ascend 910B3"),
        ("Ascend910B4", "Ascend 910B4"),
        ("Ascend910B4-1", "Ascend 910B4-1"),
        ("Ascend910_9382", "Ascend 910C"),
        ("Ascend910_9362", "Ascend 910C (20 cores)"),
        ("Ascend910C (synthetic)", "Ascend 910C"),
        ("h200", "H200"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB300", "GB300"),
        ("AMD Instinct MI355X", "MI355X"),
        ("AMD Instinct MI350X OAM", "MI350X"),
        ("NVIDIA H800", "H800 SXM"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
    ],
)
def test_devices_are_found_by_the_names_that_profilers_write(written, name):
    found = hardware.device(written)
    assert found.name == name
    assert hardware.device(found) is found


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("NVIDIA H100", "H100 SXM"),
        ("NVIDIA B100", "B200"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100 SXM 40GB"),
        ("NVIDIA L40", "L40S"),
    ],
)
def test_an_unknown_or_ambiguous_device_is_refused_with_near_names(written, near):
    with pytest.raises(LlmprofError, match="not known") as raised:
        hardware.device(written)
    assert near in raised.value.facts["near"]


def test_peaks_are_dense():
    h200 = hardware.device("NVIDIA H200")
    assert h200.peak("bf16") == 989.5e12
    assert h200.memory_bytes_per_s == 4.8e12
    assert h200.memory_bytes == 141e9
    assert hardware.device("Tesla T4").peak("fp16") == 65e12
    with pytest.raises(LlmprofError, match="bf16 is stated"):
        hardware.device("Tesla T4").peak("bf16")
    with pytest.raises(LlmprofError, match="no type"):
        h200.peak("bf17")


@pytest.mark.parametrize(
    ("name", "cube_mhz"),
    [("Ascend 910B2", 1800), ("Ascend 910B3", 1800), ("Ascend 910B4", 1500), ("Ascend 910C", 1800)],
)
def test_bf16_of_an_npu_is_its_cores_times_their_cube_times_its_clock(name, cube_mhz):
    # two sources: the rates of msmodeling, and cube_freq and cube_{m,n,k}_size of the CANN platform
    # files
    device = hardware.device(name)
    assert device.multiprocessors is not None
    assert device.peak("bf16") == pytest.approx(
        device.multiprocessors * 16**3 * 2 * cube_mhz * 1e6, rel=1e-3
    )
    assert device.peak("int8") == 2 * device.peak("fp16")


@pytest.mark.parametrize(
    ("name", "multiprocessors", "mhz", "tensor_multiply_adds", "fp32_cores"),
    [
        # NVIDIA A10 (GA102): 9,216 cores, 128 to a multiprocessor; boost 1,695 MHz; Ampere GA102
        # whitepaper: 512 multiply-adds of fp16 a clock and multiprocessor
        ("A10", 72, 1695, 512, 128),
        # NVIDIA A30 (GA100): nvbench prints 56 multiprocessors at 1,440 MHz; A100 whitepaper: 1,024
        # a clock, 64 cores
        ("A30", 56, 1440, 1024, 64),
    ],
)
def test_rates_follow_from_units_and_clock(
    name, multiprocessors, mhz, tensor_multiply_adds, fp32_cores
):
    peaks = hardware.device(name).flop_per_s
    fp16 = multiprocessors * tensor_multiply_adds * 2 * mhz * 1e6
    assert peaks["fp16"] == peaks["bf16"] == pytest.approx(fp16, rel=0.005)
    assert peaks["int8"] == pytest.approx(2 * fp16, rel=0.005)
    assert peaks["tf32"] == pytest.approx(fp16 / 2, rel=0.01)
    assert peaks["fp32"] == pytest.approx(multiprocessors * fp32_cores * 2 * mhz * 1e6, rel=0.005)


def test_fp32_of_an_npu_is_not_that_of_its_matrix_unit():
    assert hardware.device("Ascend 910B2").peak("fp32") == 11e12
    assert hardware.device("Ascend 910B2").matrix_peak("fp32") is None
    assert hardware.device("Ascend 910B2").matrix_peak("bf16") == hardware.device(
        "Ascend 910B2"
    ).peak("bf16")
    assert hardware.device("A100 SXM 80GB").matrix_peak("fp32") == hardware.device(
        "A100 SXM 80GB"
    ).peak("fp32")
    assert hardware.device("A100 SXM 80GB").matrix_peak("complex") is None
