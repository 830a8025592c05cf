"""Peaks of devices as their vendors state them: dense arithmetic, memory and links, with a source
for every number.

``None`` means that no document of the vendor states a number, or that documents disagree. Rates of
arithmetic are dense: if a data sheet only gives the number with 2:4 sparsity, half of it is used
here, and the source says so. If the clock is lower under load, the reachable rate is lower in the
same proportion.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from llmprof.errors import AnalysisError, LlmprofError, checked, listed, one_of

TYPES: Final = ("bf16", "fp16", "fp8", "fp4", "int8", "tf32", "fp32")
"""Types of numbers with peaks; all but that of fp32 are peaks of the tensor (matrix) units."""

_UNITS: Final = {
    "memory_bytes_per_s": "B/s",
    "memory_bytes": "B",
    "link_bytes_per_s": "B/s",
    "multiprocessors": "1",
    "cache_bytes": "B",
    "host_link_bytes_per_s": "B/s",
}
"""Units of the other numbers of a device."""

_NOISE: Final = re.compile(
    r"\b(?:nvidia|amd|huawei|geforce|tesla|instinct|graphics)\b|\(r\)|\(tm\)"
)


@dataclass(frozen=True)
class Device:
    """Peak rates and sizes of a device.

    Parameters
    ----------
    name : str
        Short name.
    pattern : str
        Regular expression for the device's name in profiles, in lower case and without the vendor.
    flop_per_s : mapping of str to float or None
        Dense operations per second of each of :data:`TYPES`; a fused multiply-add is two.
    memory_bytes_per_s, memory_bytes : float or None
        Bandwidth and size of the device memory (decimal units, as vendors count).
    link_bytes_per_s : float or None
        NVLink (or Infinity Fabric) bandwidth, both directions together; 0 if the device has no such
        links.
    multiprocessors : int or None
        Number of SMs, compute units or AI cores.
    cache_bytes : float or None
        Size of the last cache before the device memory, which all multiprocessors share.
    host_link_bytes_per_s : float or None
        PCIe bandwidth, both directions together.
    sources : mapping of str to str
        Document of each known number, by type of number (for ``flop_per_s``) or by field.
    """

    name: str
    pattern: str
    flop_per_s: Mapping[str, float | None]
    memory_bytes_per_s: float | None
    memory_bytes: float | None
    link_bytes_per_s: float | None
    multiprocessors: int | None
    sources: Mapping[str, str] = field(default_factory=dict)
    cache_bytes: float | None = None
    host_link_bytes_per_s: float | None = None

    def matrix_peak(self, dtype: str) -> float | None:
        """Dense operations per second of matrix products of a type of number; None where none is
        stated.

        The fp32 of an Ascend device is that of its vector cores; its cube multiplies matrices of
        fp32 faster, and not in IEEE fp32 (HF32).
        """
        if dtype == "fp32" and self.name.startswith("Ascend"):
            return None
        return self.flop_per_s.get(dtype)

    def peak(self, dtype: str) -> float:
        """Dense operations per second of a type of number.

        Raises
        ------
        LlmprofError
            The type is unknown, or the vendor states no peak for it.
        """
        if dtype not in TYPES:
            raise LlmprofError(f"there is no type {dtype!r}", expected=f"one of {listed(TYPES)}")
        value = self.flop_per_s.get(dtype)
        if value is None:
            stated = [t for t in TYPES if self.flop_per_s.get(t)]
            raise LlmprofError(
                f"no peak of {dtype} is stated for {self.name}", expected=f"one of {listed(stated)}"
            )
        return value


def _device(
    name: str,
    pattern: str,
    *,
    tflops: Mapping[str, float],
    gb_per_s: float | None,
    gb: float | None,
    link_gb_per_s: float | None,
    multiprocessors: int | None,
    source: str,
    sources: Mapping[str, str] | None = None,
    cache_mib: float | None = None,
    pcie_gb_per_s: float | None = None,
) -> Device:
    """Make a device from numbers in the units of data sheets; ``source`` is that of all numbers
    not in ``sources``.
    """
    rate, size, link, pcie = (
        None if n is None else n * 1e9 for n in (gb_per_s, gb, link_gb_per_s, pcie_gb_per_s)
    )
    cache = None if cache_mib is None else cache_mib * 2**20
    rest = dict(zip(_UNITS, (rate, size, link, multiprocessors, cache, pcie), strict=True))
    stated = [*tflops, *(quantity for quantity, number in rest.items() if number is not None)]
    peaks = {dtype: tflops[dtype] * 1e12 if dtype in tflops else None for dtype in TYPES}
    source_of = {quantity: (sources or {}).get(quantity, source) for quantity in stated}
    return Device(name, pattern, peaks, rate, size, link, multiprocessors, source_of, cache, pcie)


_HALF = "; tensor rates are half of those with sparsity"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet" + _HALF
_H100 = "NVIDIA H100 Tensor Core GPU datasheet" + _HALF
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
_GA100 = "NVIDIA A100 Tensor Core GPU Architecture whitepaper"
_ADA = "NVIDIA Ada GPU Architecture whitepaper"
_VOLTA = "NVIDIA Tesla V100 GPU Architecture whitepaper"
_HGX = "NVIDIA HGX B200 specifications, an eighth of the system" + _HALF
_DGX = "NVIDIA DGX B200 datasheet, an eighth of the system"
_V100 = "NVIDIA V100 Tensor Core GPU datasheet"
_A30 = "NVIDIA A30 Tensor Core GPU datasheet"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip datasheet"
_NVL72 = "NVIDIA GB200 NVL72 specifications, a 72nd of the rack"
_HGX_ULTRA = "NVIDIA HGX B300 specifications, an eighth of the system"
_NVL72_ULTRA = "NVIDIA GB300 NVL72 specifications, a 72nd of the rack"

_SXM_HOPPER = {
    "bf16": 989.5,
    "fp16": 989.5,
    "fp8": 1979.0,
    "int8": 1979.0,
    "tf32": 494.5,
    "fp32": 67.0,
}
_NVL_HOPPER = {
    "bf16": 835.5,
    "fp16": 835.5,
    "fp8": 1670.5,
    "int8": 1670.5,
    "tf32": 417.5,
    "fp32": 60.0,
}
_AMPERE = {"bf16": 312.0, "fp16": 312.0, "int8": 624.0, "tf32": 156.0, "fp32": 19.5}
_CDNA3 = {
    "bf16": 1307.4,
    "fp16": 1307.4,
    "fp8": 2614.9,
    "int8": 2614.9,
    "tf32": 653.7,
    "fp32": 163.4,
}

_MSMODELING = "Huawei, MindStudio Modeling (msmodeling), tensor_cast/device.py"
_CANN = "CANN toolkit, data/platform_config"
_HAMI = "Project HAMi, docs/ascend910b-support.md (aiCore and memoryCapacity of each chip)"

DEVICES: Final[tuple[Device, ...]] = (
    _device(
        "H200",
        r"h200(?: sxm5?)?(?: 141gb)?",
        tflops=_SXM_HOPPER,
        gb_per_s=4800,
        gb=141,
        link_gb_per_s=900,
        multiprocessors=132,
        source=_H200,
        sources={
            "cache_bytes": f"{_HOPPER} (H100, the same chip)",
            "multiprocessors": f"{_HOPPER} (H100 SXM5, the same chip)",
        },
        cache_mib=50,
        pcie_gb_per_s=128,
    ),
    _device(
        "H200 NVL",
        r"h200 nvl",
        tflops=_NVL_HOPPER,
        gb_per_s=4800,
        gb=141,
        link_gb_per_s=900,
        multiprocessors=None,
        source=_H200,
        sources={"cache_bytes": f"{_HOPPER} (H100, the same chip)"},
        cache_mib=50,
        pcie_gb_per_s=128,
    ),
    _device(
        "H100 SXM",
        r"h100 sxm5?(?: 80gb)?|h100 80gb hbm3",
        tflops=_SXM_HOPPER,
        gb_per_s=3350,
        gb=80,
        link_gb_per_s=900,
        multiprocessors=132,
        source=_H100,
        sources={"cache_bytes": _HOPPER, "multiprocessors": _HOPPER},
        cache_mib=50,
        pcie_gb_per_s=128,
    ),
    _device(
        "H100 PCIe",
        r"h100 pcie(?: 80gb)?",
        tflops={"bf16": 756.5, "fp16": 756.5, "fp8": 1513, "int8": 1513, "tf32": 378, "fp32": 51},
        gb_per_s=2000,
        gb=80,
        link_gb_per_s=600,
        multiprocessors=114,
        source=_H100,
        sources={"cache_bytes": _HOPPER, "multiprocessors": _HOPPER},
        cache_mib=50,
        pcie_gb_per_s=128,
    ),
    _device(
        "H100 NVL",
        r"h100 nvl",
        tflops=_NVL_HOPPER,
        gb_per_s=3900,
        gb=94,
        link_gb_per_s=600,
        multiprocessors=None,
        source=_H100,
        sources={"cache_bytes": _HOPPER},
        cache_mib=50,
        pcie_gb_per_s=128,
    ),
    _device(
        "H800 SXM",
        r"h800(?: sxm5?)?(?: 80gb)?(?: hbm3)?",
        tflops=_SXM_HOPPER,
        gb_per_s=3350,
        gb=80,
        link_gb_per_s=400,
        multiprocessors=132,
        source="NVIDIA H800 Tensor Core GPU datasheet" + _HALF,
        sources=dict.fromkeys(
            ("cache_bytes", "multiprocessors"), f"{_HOPPER} (H100 SXM5, the same chip)"
        ),
        cache_mib=50,
        pcie_gb_per_s=128,
    ),
    _device(
        "H20",
        r"h20(?: sxm5?)?(?: 96gb)?",
        tflops={"bf16": 148, "fp16": 148, "fp8": 296, "int8": 296, "tf32": 74, "fp32": 44},
        gb_per_s=4000,
        gb=96,
        link_gb_per_s=900,
        multiprocessors=78,
        source="NVIDIA H20 GPU datasheet",
        pcie_gb_per_s=128,
    ),
    _device(
        "A100 SXM 40GB",
        r"a100 sxm4? 40gb|a100 40gb",
        tflops=_AMPERE,
        gb_per_s=1555,
        gb=40,
        link_gb_per_s=600,
        multiprocessors=108,
        source=_A100,
        sources={"cache_bytes": _GA100, "multiprocessors": _GA100},
        cache_mib=40,
        pcie_gb_per_s=64,
    ),
    _device(
        "A100 SXM 80GB",
        r"a100 sxm4? 80gb|a100 80gb",
        tflops=_AMPERE,
        gb_per_s=2039,
        gb=80,
        link_gb_per_s=600,
        multiprocessors=108,
        source=_A100,
        sources={"cache_bytes": _GA100, "multiprocessors": _GA100},
        cache_mib=40,
        pcie_gb_per_s=64,
    ),
    _device(
        "A100 PCIe 40GB",
        r"a100 pcie 40gb",
        tflops=_AMPERE,
        gb_per_s=1555,
        gb=40,
        link_gb_per_s=600,
        multiprocessors=108,
        source=_A100,
        sources={"cache_bytes": _GA100, "multiprocessors": _GA100},
        cache_mib=40,
        pcie_gb_per_s=64,
    ),
    _device(
        "A100 PCIe 80GB",
        r"a100 (?:pcie 80gb|80gb pcie)",
        tflops=_AMPERE,
        gb_per_s=1935,
        gb=80,
        link_gb_per_s=600,
        multiprocessors=108,
        source=_A100,
        sources={"cache_bytes": _GA100, "multiprocessors": _GA100},
        cache_mib=40,
        pcie_gb_per_s=64,
    ),
    _device(
        "A10",
        r"a10(?: pcie)?(?: 24gb)?",
        tflops={"bf16": 125, "fp16": 125, "int8": 250, "tf32": 62.5, "fp32": 31.2},
        gb_per_s=600,
        gb=24,
        link_gb_per_s=0,
        multiprocessors=72,
        source="NVIDIA A10 Tensor Core GPU datasheet",
        pcie_gb_per_s=64,
        sources={"multiprocessors": "NVIDIA A10 datasheet: 9,216 CUDA cores, 128 to an SM"},
    ),
    _device(
        "A30",
        r"a30(?: pcie)?(?: 24gb)?",
        tflops={"bf16": 165, "fp16": 165, "int8": 330, "tf32": 82, "fp32": 10.3},
        gb_per_s=933,
        gb=24,
        link_gb_per_s=200,
        multiprocessors=None,
        source=_A30,
        pcie_gb_per_s=64,
    ),
    # the name states the memory of the CPU (480 GB) where that of the GPU is 96 GB
    _device(
        "GH200 96GB",
        r"gh200 (?:480gb|96gb)",
        tflops=_SXM_HOPPER,
        gb_per_s=4000,
        gb=96,
        link_gb_per_s=900,
        multiprocessors=132,
        source=_GH200 + _HALF,
        sources={
            "cache_bytes": f"{_HOPPER} (H100, the same chip)",
            "multiprocessors": f"{_HOPPER} (H100 SXM5, the same chip)",
        },
        cache_mib=50,
    ),
    _device(
        "GH200 144GB",
        r"gh200 144gb?(?: hbm3e)?",
        tflops=_SXM_HOPPER,
        gb_per_s=4900,
        gb=144,
        link_gb_per_s=900,
        multiprocessors=132,
        source=_GH200 + _HALF,
        sources={
            "cache_bytes": f"{_HOPPER} (H100, the same chip)",
            "multiprocessors": f"{_HOPPER} (H100 SXM5, the same chip)",
        },
        cache_mib=50,
    ),
    _device(
        "L40S",
        r"l40s(?: 48gb)?",
        tflops={"bf16": 362.05, "fp16": 362.05, "fp8": 733, "int8": 733, "tf32": 183, "fp32": 91.6},
        gb_per_s=864,
        gb=48,
        link_gb_per_s=0,
        multiprocessors=142,
        source="NVIDIA L40S GPU datasheet",
        sources={"multiprocessors": "NVIDIA L40S GPU datasheet: 18,176 CUDA cores, 128 to an SM"},
        pcie_gb_per_s=64,
    ),
    _device(
        "L4",
        r"l4(?: 24gb)?",
        tflops={"bf16": 121, "fp16": 121, "fp8": 242.5, "int8": 242.5, "tf32": 60, "fp32": 30.3},
        gb_per_s=300,
        gb=24,
        link_gb_per_s=0,
        multiprocessors=None,
        source="NVIDIA L4 Tensor Core GPU datasheet" + _HALF,
        pcie_gb_per_s=64,
    ),
    _device(
        "RTX 4090",
        r"rtx 4090",
        tflops={
            "bf16": 165.2,
            "fp16": 165.2,
            "fp8": 330.3,
            "int8": 660.6,
            "tf32": 82.6,
            "fp32": 82.6,
        },
        gb_per_s=1008,
        gb=24,
        link_gb_per_s=0,
        multiprocessors=128,
        source=f"{_ADA}, GeForce RTX 4090 (FP16 and FP8 with FP32 accumulation)",
        cache_mib=72,
        pcie_gb_per_s=64,
    ),
    _device(
        "RTX 5090",
        r"rtx 5090",
        tflops={
            "bf16": 209.5,
            "fp16": 209.5,
            "fp8": 419,
            "fp4": 1676,
            "int8": 838,
            "tf32": 104.8,
            "fp32": 104.8,
        },
        gb_per_s=1792,
        gb=32,
        link_gb_per_s=0,
        multiprocessors=170,
        cache_mib=96,
        pcie_gb_per_s=128,
        source=(
            "NVIDIA RTX Blackwell GPU Architecture whitepaper, GeForce RTX 5090 (FP16 and FP8 with"
            " FP32 accumulation)"
        ),
    ),
    _device(
        "V100 SXM2 16GB",
        r"v100 sxm2? 16gb",
        tflops={"fp16": 125, "fp32": 15.7},
        gb_per_s=900,
        gb=16,
        link_gb_per_s=300,
        multiprocessors=80,
        source=_V100,
        sources={"cache_bytes": _VOLTA, "multiprocessors": _VOLTA},
        cache_mib=6,
        pcie_gb_per_s=32,
    ),
    _device(
        "V100 SXM2 32GB",
        r"v100 sxm2? 32gb",
        tflops={"fp16": 125, "fp32": 15.7},
        gb_per_s=900,
        gb=32,
        link_gb_per_s=300,
        multiprocessors=80,
        source=_V100,
        sources={"cache_bytes": _VOLTA, "multiprocessors": _VOLTA},
        cache_mib=6,
        pcie_gb_per_s=32,
    ),
    _device(
        "V100 PCIe 16GB",
        r"v100 pcie 16gb",
        tflops={"fp16": 112, "fp32": 14},
        gb_per_s=900,
        gb=16,
        link_gb_per_s=0,
        multiprocessors=80,
        source=_V100,
        sources={"cache_bytes": _VOLTA, "multiprocessors": _VOLTA},
        cache_mib=6,
        pcie_gb_per_s=32,
    ),
    _device(
        "V100 PCIe 32GB",
        r"v100 pcie 32gb",
        tflops={"fp16": 112, "fp32": 14},
        gb_per_s=900,
        gb=32,
        link_gb_per_s=0,
        multiprocessors=80,
        source=_V100,
        sources={"cache_bytes": _VOLTA, "multiprocessors": _VOLTA},
        cache_mib=6,
        pcie_gb_per_s=32,
    ),
    _device(
        "T4",
        r"t4(?: pcie)?(?: 16gb)?",
        tflops={"fp16": 65, "int8": 130, "fp32": 8.1},
        gb_per_s=320,
        gb=16,
        link_gb_per_s=0,
        multiprocessors=40,
        source="NVIDIA T4 Tensor Core GPU datasheet",
        sources=dict.fromkeys(
            ("cache_bytes", "multiprocessors"), "NVIDIA Turing GPU Architecture whitepaper"
        ),
        cache_mib=4,
        pcie_gb_per_s=32,
    ),
    _device(
        "B200",
        r"b200(?: sxm6?)?",
        tflops={"bf16": 2250, "fp16": 2250, "fp8": 4500, "fp4": 9000, "int8": 4500, "tf32": 1125},
        gb_per_s=8000,
        gb=180,
        link_gb_per_s=1800,
        multiprocessors=None,
        source=_HGX,
        sources=dict.fromkeys(("memory_bytes_per_s", "memory_bytes", "link_bytes_per_s"), _DGX),
    ),
    # documents disagree on its memory and its fp32 rate
    _device(
        "GB200",
        r"gb200",
        tflops={"bf16": 2500, "fp16": 2500, "fp8": 5000, "fp4": 10000, "int8": 5000, "tf32": 1250},
        gb_per_s=8000,
        gb=None,
        link_gb_per_s=1800,
        multiprocessors=None,
        source=_NVL72 + _HALF,
        sources=dict.fromkeys(("memory_bytes_per_s", "link_bytes_per_s"), _NVL72),
    ),
    # documents disagree on its fp4; its int8 is a fraction of that of the B200
    _device(
        "B300",
        r"b300(?: sxm6?)?(?: ac)?",
        tflops={"bf16": 2250, "fp16": 2250, "fp8": 4500, "tf32": 1125, "fp32": 75},
        gb_per_s=8000,
        gb=288,
        link_gb_per_s=1800,
        multiprocessors=148,
        source=_HGX_ULTRA + _HALF,
        sources=dict.fromkeys(
            ("memory_bytes_per_s", "memory_bytes", "link_bytes_per_s", "fp32"), _HGX_ULTRA
        )
        | {"multiprocessors": "device properties in a recording of torch's profiler"},
    ),
    _device(
        "GB300",
        r"gb300",
        tflops={"bf16": 2500, "fp16": 2500, "fp8": 5000, "tf32": 1250},
        gb_per_s=8000,
        gb=None,
        link_gb_per_s=1800,
        multiprocessors=None,
        source=_NVL72_ULTRA + _HALF,
        sources=dict.fromkeys(("memory_bytes_per_s", "link_bytes_per_s"), _NVL72_ULTRA),
    ),
    _device(
        "MI300X",
        r"mi300x(?: oam| vf)?",
        tflops=_CDNA3,
        gb_per_s=5300,
        gb=192,
        link_gb_per_s=896,
        multiprocessors=304,
        source="AMD Instinct MI300X Accelerator data sheet",
        cache_mib=256,
        pcie_gb_per_s=128,
    ),
    _device(
        "MI325X",
        r"mi325x(?: oam)?",
        tflops=_CDNA3,
        gb_per_s=6000,
        gb=256,
        link_gb_per_s=896,
        multiprocessors=304,
        source="AMD Instinct MI325X Accelerator data sheet",
        cache_mib=256,
        pcie_gb_per_s=128,
    ),
    # 256 units at 2.4 and 2.2 GHz, each with 4,096 operations of fp16 a cycle, twice as many of
    # fp8, four times of fp4
    _device(
        "MI355X",
        r"mi355x(?: oam)?",
        tflops={
            "bf16": 2516.6,
            "fp16": 2516.6,
            "fp8": 5033.2,
            "fp4": 10066.3,
            "int8": 5033.2,
            "fp32": 157.3,
        },
        gb_per_s=8000,
        gb=288,
        link_gb_per_s=1075.2,
        multiprocessors=256,
        source="AMD Instinct MI355X GPU data sheet",
        cache_mib=256,
        pcie_gb_per_s=128,
    ),
    _device(
        "MI350X",
        r"mi350x(?: oam)?",
        tflops={
            "bf16": 2306.9,
            "fp16": 2306.9,
            "fp8": 4613.7,
            "fp4": 9227.5,
            "int8": 4613.7,
            "fp32": 144.2,
        },
        gb_per_s=8000,
        gb=288,
        link_gb_per_s=1075.2,
        multiprocessors=256,
        source="AMD Instinct MI350X GPU data sheet",
        cache_mib=256,
        pcie_gb_per_s=128,
    ),
    # There are no public data sheets of the 910B and 910C; these are the figures of Huawei's own
    # simulator. Its bf16 is that of the CANN files: cores x 4,096 multiply-adds per cycle x
    # cube_freq (24 x 1.8 GHz, 20 x 1.8, 20 x 1.5); its fp16 and int8 are those of the product
    # pages, at a higher clock. Its fp32 of the cube is not IEEE fp32, so fp32 is that of the vector
    # cores. The 910B4 is on boards with HCCS and on boards with PCIe only, so no link is stated
    _device(
        "Ascend 910B2",
        r"ascend ?910b2c?",
        tflops={"bf16": 353.9, "fp16": 376, "int8": 752, "fp32": 11},
        gb_per_s=1600,
        gb=68.719476736,
        link_gb_per_s=392,
        multiprocessors=24,
        cache_mib=192,
        source=f"{_MSMODELING}: A2_376T_64G",
        sources=dict.fromkeys(
            ("memory_bytes", "multiprocessors", "cache_bytes"), f"{_CANN}/Ascend910B2.ini"
        ),
    ),
    _device(
        "Ascend 910B3",
        r"ascend ?910b3",
        tflops={"bf16": 294.9, "fp16": 313, "int8": 626, "fp32": 9},
        gb_per_s=1600,
        gb=68.719476736,
        link_gb_per_s=392,
        multiprocessors=20,
        source=f"{_MSMODELING}: A2_313T_64G",
        sources={"multiprocessors": _HAMI},
    ),
    _device(
        "Ascend 910B4",
        r"ascend ?910b4",
        tflops={"bf16": 245.8, "fp16": 280, "int8": 560, "fp32": 8},
        gb_per_s=800,
        gb=34.359738368,
        link_gb_per_s=None,
        multiprocessors=20,
        cache_mib=96,
        source=f"{_MSMODELING}: A2_280T_32G_PCIE",
        sources=dict.fromkeys(
            ("memory_bytes", "multiprocessors", "cache_bytes"), f"{_CANN}/Ascend910B4.ini"
        ),
    ),
    _device(
        "Ascend 910B4-1",
        r"ascend ?910b4 1",
        tflops={"bf16": 245.8, "fp16": 280, "int8": 560, "fp32": 8},
        gb_per_s=1600,
        gb=68.719476736,
        link_gb_per_s=None,
        multiprocessors=None,
        source=f"{_MSMODELING}: A2_280T_64G",
    ),
    # databases name only the family, whose members differ
    _device(
        "Ascend 910B",
        r"ascend ?910b1?",
        tflops={},
        gb_per_s=None,
        gb=None,
        link_gb_per_s=None,
        multiprocessors=None,
        source="",
    ),
    # in a recording, each of the two dies of a package is a device
    _device(
        "Ascend 910C",
        r"ascend ?910(?:c| 93[89]\d)(?: \(synthetic\))?",
        tflops={"bf16": 353.9, "fp16": 376, "int8": 752, "fp32": 11},
        gb_per_s=1600,
        gb=68.719476736,
        link_gb_per_s=392,
        multiprocessors=24,
        cache_mib=192,
        source=(
            f"{_MSMODELING}: A3_752T_128G_DIE, one of two dies; links between servers, 196 GB/s"
            " each way"
        ),
        sources=dict.fromkeys(("multiprocessors", "cache_bytes"), f"{_CANN}/Ascend910_9392.ini"),
    ),
    _device(
        "Ascend 910C (20 cores)",
        r"ascend ?910 93[67]\d",
        tflops={"bf16": 245.8, "fp16": 280, "int8": 560, "fp32": 8},
        gb_per_s=1600,
        gb=68.719476736,
        link_gb_per_s=392,
        multiprocessors=20,
        source=(
            f"{_MSMODELING}: A3_560T_128G_DIE, one of two dies; links between servers, 196 GB/s"
            " each way"
        ),
        sources={"multiprocessors": f"{_CANN}/Ascend910_9362.ini"},
    ),
)
"""The devices with known peaks."""


@checked
def device(name: str | Device) -> Device:
    """Peaks of a device.

    Parameters
    ----------
    name : str
        Name as profilers write it (``NVIDIA H200``, ``NVIDIA A100-SXM4-80GB``, ``Tesla T4``), or a
        short name in :data:`DEVICES`. A :class:`Device` is returned unchanged.

    Returns
    -------
    Device
        The device with its peaks.

    Raises
    ------
    LlmprofError
        The device is unknown, the name fits several devices, or it is a part of a device (MIG).

    Examples
    --------
    >>> device("NVIDIA H200").memory_bytes_per_s
    4800000000000.0
    """
    if isinstance(name, Device):
        return name
    plain = _plain(name)
    for candidate in DEVICES:
        if plain == _plain(candidate.name) or re.fullmatch(candidate.pattern, plain):
            return candidate
    names = {_plain(candidate.name): candidate.name for candidate in DEVICES}
    near = [n for p, n in names.items() if plain and (p.startswith(plain) or plain.startswith(p))]
    near += [names[p] for p in difflib.get_close_matches(plain, list(names), n=4, cutoff=0.5)]
    raise AnalysisError(
        f"the peaks of the device {name!r} are not known",
        expected=one_of(list(names.values()), list(dict.fromkeys(near))),
        hint=(
            "or write figures of its data sheet into a YAML file; help(llmprof.theory.read_device)"
            " shows its form"
        ),
        near=list(dict.fromkeys(near)),
    )


_VARIANT: Final = re.compile(r"(?: (?:sxm\d?|pcie|nvl|\d+ ?gb))+")


@checked
def similar_devices(name: str) -> list[Device]:
    """Devices of the family that a name means (``H100``), or whose variants it tells apart
    (``t4-pcie-15gb``).

    Examples
    --------
    >>> [each.name for each in similar_devices("h100")]
    ['H100 SXM', 'H100 PCIe', 'H100 NVL']
    """
    plain = _plain(name)
    if not re.search(r"\d", plain):
        return []
    names = {_plain(each.name): each for each in DEVICES}
    family = [each for known, each in names.items() if known.startswith(f"{plain} ")]
    return family or [
        each for known, each in names.items() if _VARIANT.fullmatch(plain.removeprefix(known))
    ]


def _plain(name: str) -> str:
    return " ".join(re.sub(r"[\s_-]+", " ", _NOISE.sub(" ", name.lower())).split())


def peak_sources() -> pl.DataFrame:
    """Table of every number with its source.

    Returns
    -------
    polars.DataFrame
        ``device, quantity, value, unit, source``; value and source are null if no document states a
        number.
    """
    rows: list[tuple[str, str, float | None, str, str | None]] = []
    for each in DEVICES:
        numbers: list[tuple[str, float | None, str]] = [
            (t, each.flop_per_s.get(t), "FLOP/s") for t in TYPES
        ]
        numbers += [(what, getattr(each, what), unit) for what, unit in _UNITS.items()]
        rows += [
            (each.name, what, value, unit, each.sources.get(what)) for what, value, unit in numbers
        ]
    schema = {
        "device": pl.String,
        "quantity": pl.String,
        "value": pl.Float64,
        "unit": pl.String,
        "source": pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")
