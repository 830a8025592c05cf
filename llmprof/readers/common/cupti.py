"""Numbers and columns of CUPTI, which nvprof and nsys write."""

from typing import Final

COPY_KINDS: Final = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoD",
    4: "DtoH",
    5: "DtoD",
    6: "DtoD",
    7: "DtoD",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "HtoD",
    12: "DtoH",
    13: "DtoD",
}
"""CUpti_ActivityMemcpyKind; nsys goes on with numbers of its own."""

LAUNCH_SHAPE: Final = {
    "gridX": "grid_x",
    "gridY": "grid_y",
    "gridZ": "grid_z",
    "blockX": "block_x",
    "blockY": "block_y",
    "blockZ": "block_z",
    "registersPerThread": "registers",
}
"""Columns of a kernel, by what they are called here."""
