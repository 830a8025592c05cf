"""What the nsys reader says of calls, copies and ranges, on an export made by hand of the rare
kinds.
"""

import pytest

from llmprof.readers.common.reader import combine
from llmprof.readers.nsys import reader
from tests.readers.test_nsys import write

PID = (1 << 48) + (100 << 24)
TID, OTHER = PID + 100, PID + 101

TEXTS = [
    "gemm(int *)",
    "cudaLaunchKernel_v7000",
    "cudaLaunchKernelExC_v11060",
    "cuMemcpyDtoDAsync_v2",
    "cudaLaunchKernel",
    "registered",
    "cudaMemcpyAsync_ptsz_v7000",
]
KINDS = {
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
TABLES = {
    "StringIds": ("id INTEGER, value TEXT", list(enumerate(TEXTS, 1))),
    "ENUM_CUDA_MEMCPY_OPER": (
        "id INTEGER, name TEXT, label TEXT",
        [(i, "", label) for i, label in KINDS.items()],
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "demangledName INTEGER, shortName INTEGER",
        [(1000 * i, 1000 * i + 90 + i, 0, 7, i, PID, 1, 1) for i in range(1, 6)],
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "bytes INTEGER, copyKind INTEGER",
        [(9000 + 10 * i, 9001 + 11 * i, 0, 7, 100 + i, PID, 1000 * i, i) for i in KINDS],
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
        [
            (100, 110, 0, TID, 1, 2),
            (200, 1900, 0, TID, 2, 2),
            (2000, 2010, 0, TID, 3, 3),
            (2100, 2107, 1, TID, 9, 4),
            (3000, 3010, 0, TID, 4, 2),
            (2999, 3011, 67, TID, 4, 5),
            (3500, 3510, 0, OTHER, 5, 2),
            (3600, 3601, 0, OTHER, 104, 7),
        ],
    ),
    "NVTX_EVENTS": (
        "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER, "
        "endGlobalTid INTEGER, domainId INTEGER",
        [
            (0, None, 75, "mine", None, TID, None, 3),
            (50, 2500, 59, "step", None, TID, None, 0),
            (90, 120, 59, None, 6, TID, None, 3),
            (150, 2050, 60, "request", None, TID, None, 0),
            (160, 4000, 60, "across", None, TID, OTHER, 0),
            (170, None, 34, "mark", None, TID, None, 0),
            (2900, 3050, 70, "imported", None, TID, None, 0),
            (3400, None, 59, "still open", None, OTHER, None, 0),
            (3450, 3700, 71, "imported", None, OTHER, None, 0),
        ],
    ),
}


@pytest.fixture
def trace(tmp_path):
    return combine(reader.read(write(tmp_path / "rare.sqlite", TABLES)), "nsys")


def test_calls_lose_the_version_that_nsys_takes_off_and_keep_others(trace):
    runtime = trace.runtime
    assert runtime.select("name", "api", "nsys_event_class").rows() == [
        ("cudaLaunchKernel", "runtime", 0),
        ("cudaLaunchKernel", "runtime", 0),
        ("cudaLaunchKernelExC_v11060", "runtime", 0),
        ("cuMemcpyDtoDAsync_v2", "driver", 1),
        ("cudaLaunchKernel", "runtime", 67),
        ("cudaLaunchKernel", "runtime", 0),
        ("cudaLaunchKernel", "runtime", 0),
        ("cudaMemcpyAsync_ptsz", "runtime", 0),
    ]


def test_copies_are_named_by_their_exact_kind(trace):
    copies = trace.copies.sort("bytes")
    assert copies["name"].to_list() == [f"[CUDA memcpy {label}]" for label in KINDS.values()]
    assert copies["kind"].to_list() == [
        "HtoD",
        "DtoH",
        "HtoD",
        "DtoH",
        "DtoD",
        "DtoD",
        "DtoD",
        "DtoD",
        "HtoH",
        "PtoP",
        "HtoD",
        "DtoH",
        "DtoD",
    ]


def test_ranges_have_a_style_and_say_if_they_ended_on_another_thread(trace):
    markers = trace.markers
    assert markers.select("name", "domain", "nsys_style", "nsys_end_thread", "dur_ns").rows() == [
        ("step", "nvtx", "PushPop", None, 2450),
        ("registered", "mine", "PushPop", None, 30),
        ("request", "nvtx", "StartEnd", None, 1900),
        ("across", "nvtx", "StartEnd", 101, 3840),
        ("mark", "nvtx", "Mark", None, 0),
        ("imported", "nvtx", "PushPop", None, 150),
        ("still open", "nvtx", "PushPop", None, 600),
        ("imported", "nvtx", "StartEnd", None, 250),
    ]
