"""The examples of CONTRIBUTING.md and docs/my_own.md, as they stand there: own files, one line
elsewhere, and what they give.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import names
from tests import plugin_package
from tests.launch.vllm_stand_in import job

_BLOCK = re.compile(
    r"(?:`(?P<path>[\w./]+\.(?:pyi?|toml))`[^\n]*\n\n)```(?P<kind>\w+)\n(?P<code>.*?)```\n",
    re.DOTALL,
)
_DIFF = re.compile(
    r"`(?P<path>[\w./]+\.(?:py|toml))`(?:(?!```|\.py`).)*?\n\n```diff\n(?P<code>.*?)```\n",
    re.DOTALL,
)
RUNS = (
    "#ktrace rank=0\n"
    + "".join(f"{10 * i},{9 if i == 5 else 2},7,gemm\n" for i in range(12))
    + "1,2,3\n"
)


@pytest.fixture(scope="module")
def page(root) -> dict[str, str]:
    """Sections of the pages by their heading."""
    text = "".join(
        (root / name).read_text("utf-8") for name in ("CONTRIBUTING.md", "docs/my_own.md")
    )
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def files_of(section: str) -> dict[str, str]:
    """Files that an example makes, by path."""
    return {
        found["path"]: found["code"]
        for found in _BLOCK.finditer(section)
        if found["kind"] in ("python", "toml")
    }


def line_of(section: str, root: Path) -> tuple[str, str]:
    """The one line that an example adds elsewhere: the file, and the line; the line before it is
    there.
    """
    (found,) = [found for found in _BLOCK.finditer(section) if found["kind"] == "diff"]
    before, added = found["code"].splitlines()
    assert (before[0], added[0]) == (" ", "+")
    assert before[1:] in (root / found["path"]).read_text("utf-8").splitlines()
    return found["path"], added[1:].strip().rstrip(",")


def additions(section: str) -> list[tuple[str, str, str]]:
    """The file, the line before, and the lines of each that an example adds."""
    out = []
    for found in _DIFF.finditer(section):
        for before, added in re.findall(r"^ (.*\n)((?:\+.*\n)+)", found["code"], re.MULTILINE):
            out.append((found["path"], before, re.sub(r"^\+", "", added, flags=re.MULTILINE)))
    return out


def write(page, root: Path, name: str) -> None:
    """Do what an example says in a copy of the package: its own files, and its lines in a list."""
    for path, text in files_of(page[name]).items():
        assert not (root / path).exists()
        (root / path).write_text(text, encoding="utf-8")
    ends: dict[
        str, int
    ] = {}  # of what was added before, since lines stand in the order of the file
    for path, before, added in additions(page[name]):
        text = (root / path).read_text("utf-8")
        at = text.index(before, ends.get(path, 0)) + len(before)
        (root / path).write_text(text[:at] + added + text[at:], encoding="utf-8")
        ends[path] = at + len(added)


@pytest.fixture
def copied(root, tmp_path) -> Path:
    shutil.copytree(
        root / "llmprof", tmp_path / "llmprof", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "notebooks").symlink_to(root / "notebooks")
    return tmp_path


def output_of(folder: Path, code: str) -> object:
    """What a script prints as JSON, with the package of a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_add_a_reader(page, copied):
    write(page, copied, "Add a reader")
    (copied / "run").mkdir()
    (copied / "run" / "a.ktrace").write_text(RUNS)
    code = """if True:
        import json, warnings, llmprof
        from llmprof.readers import registry
        with warnings.catch_warnings(record=True) as said:
            trace = llmprof.read("run", cache=False)
        rows = trace.kernels["dur_ns"].to_list()
        listed = "ktrace" in registry.formats()
        print(json.dumps([rows, trace.meta["format"], listed, [str(one.message) for one in said]]))
    """
    rows, form, listed, said = output_of(copied, code)
    assert (len(rows), rows[5], form, listed) == (12, 9000, "ktrace", True)
    assert any("a.ktrace: lines that could not be read: 1" in one for one in said)


def test_a_finding_is_one_file_and_one_line(page, copied):
    write(page, copied, "Add a finding")
    assert len(files_of(page["Add a finding"])) == 1
    code = """if True:
        import json, llmprof, polars as pl
        fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >"
        rows = {"rank": 0, "device": 0, "stream": 7, "start_ns": [0, 100, 200], "dur_ns": [60, 30, 10]}
        kernels = pl.DataFrame({**rows, "name": ["nvjet_tst", fill, fill]})
        found = llmprof.Trace({"kernels": kernels}).findings().filter(rule="fills")
        print(json.dumps(found.select("figure", "evidence", "start_ns", "title").rows()))
    """
    [[figure, evidence, start_ns, title]] = output_of(copied, code)
    assert (figure, evidence, start_ns) == (40.0, "events", 100)
    assert "40" in title


def test_a_rule_for_a_layer_is_one_file_and_one_line(page, root, copied):
    assert len(files_of(page["Add a rule for a layer"])) == 1
    shutil.copytree(
        root / "tests" / "analyze",
        copied / "tests" / "analyze",
        ignore=shutil.ignore_patterns("labelled"),
    )
    shutil.copy(root / "tests" / "building.py", copied / "tests")
    code = """if True:
        import json, llmprof
        from tests.analyze import builders as b
        product, added = (f"void at::native::vectorized_elementwise_kernel<4, at::native::{f}<float> >"
                          for f in ("BinaryFunctor<float, float, float, MulFunctor", "CUDAFunctor_add"))
        layer = [*b.DENSE[:6], product, added, *b.DENSE[6:]]
        run = b.kernels(b.forward(4, layer))
        marks = b.labels([("execute_context_1(9)_generation_0(0)", 0, b.end(run))], on_device=True)
        events = llmprof.Trace({"kernels": run, "markers": marks}).events
        print(json.dumps(events.filter(layer=2)["stage"].to_list()))
    """
    dense = [
        "norm",
        "qkv_proj",
        "rope",
        "kv_cache_write",
        "attention",
        "o_proj",
        "norm",
        "gate_up_proj",
        "activation",
    ]
    before = output_of(copied, code)
    write(page, copied, "Add a rule for a layer")
    assert (
        output_of(copied, code)
        == [*dense[:6], "residual", "residual", *dense[6:], "down_proj"]
        != before
    )


def test_an_analysis_is_one_file_and_one_line_and_a_figure_comes_to_it(page, copied, tmp_path):
    times = pl.DataFrame({"dur_ns": [100] * 19 + [900]})
    run = times.with_columns(
        rank=0,
        device=0,
        stream=7,
        name=pl.lit("gemm"),
        start_ns=1000 * pl.int_range(pl.len(), dtype=pl.Int64),
    )
    llmprof.Trace({"kernels": run}, {"world_size": 1}).save(tmp_path / "saved")
    code = """if True:
        import json, llmprof
        from llmprof.analyze import catalog
        trace = llmprof.read("saved")
        page = llmprof.report.html(trace)
        print(json.dumps({
            "row": trace.analyze.kernel_jitter().row(0, named=True),
            "listed": "kernel_jitter" in dir(llmprof.analyze) and "jitter" in catalog.views(),
            "heading": "Which kernels take a different time each time?" in page,
            "table": "median and 99th percentile of the time of each kernel" in page,
            "figure": 'data-chart="jitter"' in page,
        }))
    """
    gives = []
    for name in ("Add an analysis", "Show an analysis", "Give an analysis a figure"):
        write(page, copied, name)
        gives.append(output_of(copied, code))
    row = {"name": "gemm", "count": 20, "median_ns": 100.0, "p99_ns": 100.0, "spread": 1.0}
    all_of = {"row": row, "listed": True}
    assert gives == [
        all_of | {"heading": False, "table": False, "figure": False},
        all_of | {"heading": True, "table": True, "figure": False},
        all_of | {"heading": True, "table": True, "figure": True},
    ]
    command = [sys.executable, "-m", "llmprof", "analyze", "saved", "--what", "jitter", "--json"]
    environment = os.environ | {"PYTHONPATH": str(copied)}
    done = subprocess.run(
        command, cwd=copied, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)[0]["count"] == 20


def test_add_an_engine(page, copied):
    write(page, copied, "Add an engine")
    settings = job(engine="idle", profiler="none", model=str(copied))
    code = f"""if True:
        import json
        from llmprof.run.launch import ExperimentConfig, engines
        config = ExperimentConfig(model="random:tiny", engine="idle", profile_mode="inference_only")
        open("script.pyz", "wb").write(engines.script({settings!r}))
        print(json.dumps(config.engine))
    """
    assert output_of(copied, code) == "idle"
    command = [sys.executable, str(copied / "script.pyz"), "--out", str(copied / "out")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    worker = json.loads((copied / "out" / "worker.json").read_text())
    assert [r["phase"] for r in worker["requests"]] == ["warmup"] * 2 + ["plain"] * 4
    assert all(r["e2e_s"] >= 0.006 for r in worker["requests"])
    assert worker["error"] is None
    assert worker["notes"] == ["synthetic: this engine only waits"]


def test_an_operator_is_one_entry(page, copied):
    assert not files_of(page["Add an operator"])
    code = """if True:
        import json, polars as pl
        from llmprof.analyze.operator_arguments import recorded_call
        from llmprof.theory import calls
        texts = "zeta::mm_out", "[[4, 2], [4, 8], [8, 2]]", '["c10::Half", "c10::Half", "c10::Half"]'
        try:
            work = calls.work_of(calls.parse_call(*texts))
            told = [work.flops, work.read, work.written, recorded_call(*texts).known.stored]
        except calls.NoWorkError:
            told = None
        print(json.dumps([told, calls.operator_categories(pl.Series(texts[:1])).item()]))
    """
    assert output_of(copied, code) == [None, None]
    write(page, copied, "Add an operator")
    assert output_of(copied, code) == [[128, 96, 16, [2]], "gemm"]


def test_add_a_kernel_name(page, root):
    section = page["Add a kernel name"]
    category, pattern = eval(line_of(section, root)[1])
    kernel = pl.Series(["void zeta_mix_kernel<4>(float*)"])
    assert names.categories(kernel).to_list() == ["other"]
    before = list(names.KERNEL_PATTERNS)
    try:
        names.KERNEL_PATTERNS.insert(0, (category, pattern))
        assert names.categories(kernel).to_list() == ["attention"]
        names.KERNEL_PATTERNS[:] = before
        (session,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        exec(session, {})
        assert names.categories(kernel).to_list() == ["attention"]
    finally:
        names.KERNEL_PATTERNS[:] = before


def test_a_package_with_all_three(page, tmp_path, monkeypatch):
    section = page["From a package of your own"]
    project = tomllib.loads(files_of(section)["pyproject.toml"])["project"]
    figure = files_of(page["Give an analysis a figure"])
    modules = {
        "reader": files_of(page["Add a reader"])["llmprof/readers/ktrace.py"],
        "jitter": files_of(page["Add an analysis"])["llmprof/analyze/jitter.py"],
        "chart": figure["llmprof/charts/subjects/jitter.py"],
        "section": figure["llmprof/report/jitter.py"]
        .replace("llmprof.analyze.jitter", "acme_llmprof.jitter")
        .replace("llmprof.charts.subjects.jitter", "acme_llmprof.chart"),
        "listing": "from llmprof.cli.listings import Listing\nLISTING = Listing('kernel_jitter', 'name')",
        "names": re.findall(r"```py\n(.*?)```", section, re.DOTALL)[0],
    }
    site = tmp_path / "site"
    plugin_package.write(
        site, "acme_llmprof", "", project["entry-points"], version=project["version"]
    )
    (site / "acme_llmprof.py").unlink()
    (site / "acme_llmprof").mkdir()
    (site / "acme_llmprof" / "__init__.py").write_text("")
    for name, code in modules.items():
        (site / "acme_llmprof" / f"{name}.py").write_text(code)
    (tmp_path / "a.ktrace").write_text(
        RUNS.rsplit("\n", 2)[0].replace("gemm", "acme_fused_mix") + "\n"
    )
    # as a user has it: a process of its own in which the package is installed
    code = (
        "import json, sys, llmprof\n"
        "from llmprof import analyze, report\n"
        "from llmprof.analyze import catalog\n"
        "trace = llmprof.read(sys.argv[1], cache=False)\n"
        "print(json.dumps([trace.kernels.height, trace.events['category'].unique().to_list(),\n"
        "    analyze.kernel_jitter(trace)['count'].to_list(), catalog.analysis('jitter').package,\n"
        "    'data-chart=\"jitter\"' in report.html(trace)]))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "a.ktrace")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [12, ["attention"], [12], "acme_llmprof 1.2", True]
