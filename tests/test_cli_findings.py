"""``llmprof findings`` for programs, and ``llmprof diff`` as a gate of continuous integration."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from llmprof.cli import main
from llmprof.findings.document import findings_schema

DOCS = Path(__file__).parents[1] / "docs"
GRAPHS, EAGER = "sample:torch_tp1_cudagraph", "sample:torch_tp1_eager"
NSYS, ON_CPU = "sample:nsys_tp2_cudagraph", "sample:torch_cpu_tp2_layer_annotations"


@pytest.mark.parametrize(
    "name",
    [EAGER, *(pytest.param(name, marks=pytest.mark.slow) for name in (GRAPHS, NSYS, ON_CPU))],
)
def test_json_keeps_to_the_schema(name, capsys):
    assert main.main(["findings", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, findings_schema(), cls=jsonschema.Draft202012Validator)
    assert [row["order"] for row in document["findings"]] == list(
        range(1, len(document["findings"]) + 1)
    )
    assert document["trace"]["ranks"]


def test_the_text_says_where_the_time_went(capsys):
    assert main.main(["findings", EAGER, "-v"]) == 0
    [line] = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("Recorded time")
    ]
    shares = re.findall(r"([\d.]+) %", line)
    assert len(shares) == 4  # prefill, mixed, decode and the rest
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.2)
    assert main.main(["findings", "--schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed == json.loads((DOCS / "findings.schema.json").read_text("utf-8")), (
        "make: llmprof findings --schema"
    )


def test_a_slower_run_ends_with_exit_code_1(capsys):
    assert main.main(["diff", GRAPHS, EAGER, "--fail-over", "3%"]) == 1
    assert "decode: slower" in capsys.readouterr().out
    assert main.main(["diff", EAGER, GRAPHS, "--fail-over", "0.03", "--markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("**Not slower** by more than the 3.0% allowed.")
    assert "too few steps" in text  # the one prefill was slower, which says nothing
    assert main.main(["diff", GRAPHS, EAGER, "--markdown"]) == 0  # no gate was asked for
    assert capsys.readouterr().out.startswith("**Slower**")
    assert main.main(["diff", GRAPHS, GRAPHS, "--fail-over", "0"]) == 0
    with pytest.raises(SystemExit):
        main.main(["diff", GRAPHS, EAGER, "--fail-over", "much"])
    assert "is not a share; write 3% or 0.03" in capsys.readouterr().err
