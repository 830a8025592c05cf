# ruff: noqa: T201 (a program, which prints)
"""Stands in for nsys: profile (which runs the program in a session of its own), export,
--version.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SAMPLES = Path(r"""@SAMPLES@""")
HOW = json.loads(os.environ.get("STAND_IN_NSYS") or "{}")


def main(argv):
    if argv == ["--version"]:
        print("NVIDIA Nsight Systems version 2024.2.3.38-242334140272v0")
        return 0
    with Path(os.environ["STAND_IN_ARGV"]).open("a") as file:
        file.write(json.dumps(["nsys", *argv]) + "\n")
    options = dict(
        a.removeprefix("--").partition("=")[::2]
        for a in argv[1:]
        if a.startswith("--") and "=" in a
    )
    output = Path(options["output"])
    if argv[0] == "export":
        if HOW.get("export") == "fails":
            print("Error: the report is newer than this nsys", file=sys.stderr)
            return 1
        shutil.copy(SAMPLES / Path(argv[-1]).read_text() / "report.sqlite", output)
        return 0
    program = argv[1:]
    while program[0].startswith("-"):
        program = program[1:]
    status = subprocess.run(program, start_new_session=True).returncode
    if HOW.get("writes") == "qdstrm":
        Path(f"{output}.qdstrm").write_bytes(b"raw")
        print("Importer error status: QdstrmImporter was not found")
        return 1
    if HOW.get("writes") == "nothing":
        print("No reports were generated")
        return status
    Path(f"{output}.nsys-rep").write_text(HOW.get("sample", "nsys_tp1_layer_nvtx"))
    print(f"Generated:\n\t{output}.nsys-rep")
    return status


sys.exit(main(sys.argv[1:]))
