"""Every command that looks at a recording works on hardware metrics of Nsight Compute, without
an option.
"""

import json
import re

import pytest

from llmprof.explore.served import ServedFiles, tabs_page
from llmprof.readers import bundled
from llmprof.run.launch.run import process

SAMPLE = "sample:ncu_tp1_eager"
FOLDER = str(bundled.samples_folder() / "ncu_tp1_eager")


@pytest.fixture
def served(monkeypatch):
    """What ``llmprof explore`` would serve; the server is ended at once."""
    seen = {}

    def start(argv, *, log, env, **_options):
        seen["page"] = tabs_page(env)
        seen["wanted"] = ServedFiles.of_environment(env)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run", start)
    return seen


@pytest.mark.slow
def test_every_command_that_samples_prints(run, served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"llmprof (\w+) (sample:\w+)", run("samples")[1])
    assert {name for name, _ in commands} == {"info", "findings", "report", "explore"}
    assert SAMPLE in {name for _, name in commands}
    for command, name in commands:
        code, out, err = run(f"{command} {name}")
        assert (code, err) == (0, ""), (command, name)
        assert out.strip(), (command, name)


def test_info_as_json(run):
    about = json.loads(run(f"info {SAMPLE} --json")[1])
    assert about["kernels"][0]["count"] == 2
    assert about["facts"]["device"] == "NVIDIA H200"
    assert len(about["metrics"]) == 2_301


def test_a_view_of_a_timeline_says_what_is_missing(run):
    code, _, err = run(f"analyze {SAMPLE} overlap")
    assert code == 2
    assert "overlap needs a timeline, and these are hardware metrics of single launches" in err
    assert "speed-of-light" in err
    assert "CSV hold no samples" in run(f"analyze {SAMPLE} hot-lines")[2]


def test_what_needs_a_timeline_names_the_commands_that_do_not(run, tmp_path):
    for words in (("export", SAMPLE, "-o", str(tmp_path / "t.pftrace")), ("what-if", SAMPLE)):
        code, _, err = run(*words)
        assert code == 2
        assert "holds hardware metrics of single launches and no timeline" in err
        assert (
            "give this file alone to llmprof info, findings, analyze, report, explore or diff"
            in err
        )


def test_diff_of_two_profiles(run):
    code, out, _ = run(f"diff {SAMPLE} {FOLDER}")
    assert code == 0
    assert "24 launches of both together" in out


def test_report_as_folder_and_as_page(run, tmp_path):
    code, out, err = run(f"report {SAMPLE} -o {tmp_path}/r")
    assert (code, err) == (0, "")
    assert "Charts" in out
    folder = tmp_path / "r"
    assert {path.name for path in folder.glob("*.png")} == {
        "kernel_time.png",
        "roofline.png",
        "stalls.png",
    }
    assert (folder / "limits.csv").is_file()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["findings"][0]["evidence"] == "speed_of_light"
    absent = {entry["part"]: entry["found"] for entry in summary["absent"]}
    assert "pages in CSV hold no samples of instructions" in absent["hot_lines"]
    text = (folder / "index.html").read_text()
    for heading in ("Try:", "what limits them?", "roofs of the device", "warps wait for", "advise"):
        assert heading in text
    assert "Nsight Compute replays each launch alone" in text
    assert run(f"report {SAMPLE} -o {tmp_path}/one.html")[0] == 0
    assert "Try:" in (tmp_path / "one.html").read_text()


def test_explore_opens_findings_and_kernels(run, served):
    assert run(f"explore {SAMPLE}")[0] == 0
    assert served["wanted"].files == []
    opened = served["page"]
    assert list(opened.titles) == ["Findings", "Kernels"]
    opened.show_finding(3)
    kernels = opened["kernels"]
    assert "act_and_mul_kernel" in kernels.kernel
    assert kernels.table["count"].sum() == 24
    assert kernels._on_metrics(kernels.kernel)[0]["speed"]["bound_by"] == "memory"
    assert opened.selected_index == 1


def test_explore_says_why_it_cannot_compare(run):
    assert "llmprof diff A B" in run(f"explore {SAMPLE} --compare {SAMPLE}")[2]
