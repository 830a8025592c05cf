# ruff: noqa: T201 (a program, which prints)
"""Stands in for ncu: runs the program and writes a report, or prints a page of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

SAMPLES = Path(r"""@SAMPLES@""")
HOW = json.loads(os.environ.get("STAND_IN_NCU") or "{}")
SWITCHES = {"--force-overwrite", "--csv"}


def main(argv):
    if argv == ["--version"]:
        print(
            "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880)"
        )
        return 0
    options, program = {}, list(argv)
    while program and program[0].startswith("-"):
        name = program.pop(0)
        options[name] = None if name in SWITCHES else program.pop(0)
    if "--import" in options:
        assert Path(options["--import"]).read_bytes().startswith(b"NVR\0")
        sys.stdout.write((SAMPLES / "ncu_tp1_eager" / f"{options['--page']}.csv").read_text())
        return 0
    with Path(os.environ["STAND_IN_ARGV"]).open("a") as file:
        file.write(json.dumps(["ncu", *argv]) + "\n")
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    status = subprocess.run(program).returncode
    if HOW.get("writes") == "no permission":
        print(
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
        )
        return 1
    if HOW.get("writes") == "nothing":
        print("==WARNING== No kernels were profiled.")
        return status
    Path(f"{options['--export']}.ncu-rep").write_bytes(b"NVR\0\2\0\0\0\x08\x07")
    return status


sys.exit(main(sys.argv[1:]))
