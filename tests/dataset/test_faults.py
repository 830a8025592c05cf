"""What goes wrong with a dataset: it is named, the rest answers, and the same call goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager, suppress

import psutil
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze
from llmprof.cli.main import main
from llmprof.errors import (
    AnalysisError,
    ClusterError,
    MixedRunsError,
    OutputError,
    ReadError,
    TraceWarning,
)
from llmprof.report.dataset import cluster
from llmprof.trace.storage.dataset import MANIFEST, PART_FILE, sealed_record
from llmprof.trace.storage.places import UNFINISHED
from tests.dataset.files import rank_file, run_folder, same


@pytest.fixture
def run(tmp_path):
    return run_folder(tmp_path / "run", rank1=150)


@pytest.fixture
def many(run, tmp_path):
    llmprof.convert(run, tmp_path / "out", client=False)
    return tmp_path / "out"


@contextmanager
def warned(*matches):
    """Each of the texts is among the warnings."""
    with warnings.catch_warnings(record=True, action="always", category=TraceWarning) as caught:
        yield
    said = [str(one.message) for one in caught]
    for match in matches:
        assert any(re.search(match, words) for words in said), (match, said)


def partition_of(folder, rank):
    return next(
        path.parent
        for path in folder.glob(f"*/{PART_FILE}")
        if json.loads(path.read_text())["rank"] == rank
    )


def whole(folder):
    """Each partition is there as it was written, and nothing else."""
    assert not list(folder.glob(f"{UNFINISHED}*"))
    for part in folder.glob("part-*"):
        stored = json.loads((part / PART_FILE).read_text())["tables"]
        assert {path.stem: path.stat().st_size for path in part.glob("*.parquet")} == {
            name: table["bytes"] for name, table in stored.items()
        }


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            lambda part: [path.unlink() for path in part.iterdir()] and part.rmdir(),
            "its folder is missing",
        ),
        (lambda part: (part / "kernels.parquet").unlink(), "kernels.parquet is missing"),
        (lambda part: os.truncate(part / "runtime.parquet", 10), "runtime.parquet has 10 of "),
    ],
)
def test_a_partition_that_is_not_whole_is_named_and_the_rest_answers(many, run, harm, said):
    harm(partition_of(many, 1))
    with pytest.warns(TraceWarning, match=rf"rank 1 \(rank1.pt.trace.json\) is left out: {said}"):
        trace = llmprof.open(many)
    assert trace.ranks == [0, 2]
    assert trace.meta["missing_ranks"] == [1]
    (damaged,) = trace.coverage["damaged"]
    assert (damaged["rank"], damaged["file"]) == (1, "rank1.pt.trace.json")
    assert [file["rank"] for file in trace.coverage["files"]] == [0, 2]
    assert trace.coverage["events"] == sum(file["events"] for file in trace.coverage["files"])
    calls = llmprof.map("collectives", trace, client=False)
    assert calls["wait_ns"].null_count() == calls.height == 6
    assert calls["reason"].n_unique() == 1
    with pytest.warns(TraceWarning, match=said):
        assert llmprof.read(many).ranks == [0, 2]
    same(
        llmprof.convert(run, many, client=False), llmprof.read(run, cache=False)
    )  # only what is missing is done again
    whole(many)


def test_damage_inside_of_a_file_is_found_when_it_is_read(many):
    file = partition_of(many, 1) / "kernels.parquet"
    content = file.read_bytes()
    file.write_bytes(b"\0" * len(content))
    trace = llmprof.open(many)
    with pytest.raises(
        ReadError, match=r"kernels.parquet of rank 1 is damaged .*leave the rank out"
    ) as raised:
        _ = trace.kernels
    assert raised.value.facts["ranks"] == [1]
    with pytest.raises(AnalysisError):
        llmprof.open(many).sql("select * from kernels")
    assert trace.select(rank=[0, 2]).kernels.height == 12
    with pytest.raises(ReadError, match=r"kernels.parquet of rank 1 is damaged"):
        llmprof.map("overlap", trace, client=False)
    data = bytearray(content)
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    with pytest.raises(ReadError, match="not as it was written"):
        llmprof.open(many).table("kernels")


def test_a_file_that_cannot_be_read_is_named_and_tried_again(run, tmp_path):
    rank_file(run, 2)
    good = (run / "rank2.pt.trace.json").read_bytes()
    (run / "rank2.pt.trace.json").write_text('{"traceEvents": [], "schemaVersion": ' + "[" * 2000)
    with warned(
        r"rank2.pt.trace.json could not be converted and is left out", r"1 of 3 ranks is missing"
    ):
        trace = llmprof.convert(
            [*sorted(run.iterdir())], tmp_path / "out", client=False, format="chrome"
        )
    assert trace.ranks == [0, 1]
    (failed,) = trace.coverage["failed"]
    assert failed["file"] == "rank2.pt.trace.json"
    assert trace.meta["missing_ranks"] == [2]
    (run / "rank2.pt.trace.json").write_bytes(good)
    assert llmprof.convert(
        [*sorted(run.iterdir())], tmp_path / "out", client=False, format="chrome"
    ).ranks == [0, 1, 2]


def test_nothing_that_can_be_read_is_an_error(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.json").write_text('{"traceEvents": ' + "[" * 2000)
    with pytest.raises(ReadError, match="the file cannot be read: "):
        llmprof.convert(run / "rank0.json", tmp_path / "out", client=False, format="chrome")


def test_two_runs_in_one_folder_are_refused(run, tmp_path):
    rank_file(run, 2, base_us=9e9)
    with pytest.raises(MixedRunsError, match=r"begins .* after .* ended"):
        llmprof.convert(run, tmp_path / "out", client=False)
    rank_file(run, 2, world=64)
    with pytest.raises(MixedRunsError, match=r"different world sizes"):
        llmprof.convert(run, tmp_path / "out", client=False)
    with pytest.raises(ReadError, match=r"is not a dataset"):
        llmprof.open(tmp_path / "out")
    rank_file(run, 2)
    same(llmprof.convert(run, tmp_path / "out", client=False), llmprof.read(run, cache=False))
    other = run_folder(tmp_path / "other")
    with pytest.raises(OutputError, match=r"is the dataset of other files: rank0.pt.trace.json"):
        llmprof.convert(other, tmp_path / "out", client=False)


@pytest.mark.parametrize(
    ("part", "wrong"), [("coverage", {"files": [0]}), ("meta", {"ranks": "0"})]
)
def test_wrong_types_in_the_manifest_of_a_dataset_are_refused(many, part, wrong):
    manifest = json.loads((many / MANIFEST).read_text()) | {part: wrong}
    (many / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ReadError, match="not as it was written"):
        llmprof.open(many)
    del manifest["checksum"]
    (many / MANIFEST).write_bytes(sealed_record(manifest))
    with pytest.raises(ReadError, match=rf"is damaged: .*\$\.{part}"):
        llmprof.open(many)


@pytest.mark.parametrize("key", ["version", "schema"])
def test_a_dataset_of_another_version_says_so_and_is_made_anew(many, run, key, capsys):
    manifest = json.loads((many / MANIFEST).read_text()) | {key: 0, "llmprof": "0.0.9"}
    (many / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(
        ReadError, match=r"written by llmprof 0.0.9; expected version .*convert the files again"
    ):
        llmprof.open(many)
    assert main(["info", str(many)]) == 2
    assert "written by llmprof 0.0.9" in capsys.readouterr().err
    (many / MANIFEST).write_text("{")
    with pytest.raises(ReadError, match=r"is damaged"):
        llmprof.open(many)
    same(llmprof.convert(run, many, client=False), llmprof.read(run, cache=False))


def test_ranks_whose_clocks_share_nothing_have_no_waits_and_it_is_said(run, tmp_path, capsys):
    rank_file(run, 1, base_us=9e9, jitter_us=(0, 70_000, 20_000))
    with pytest.raises(MixedRunsError):
        llmprof.convert(run, tmp_path / "out", client=False)
    with pytest.warns(TraceWarning, match=r"the clocks of the ranks are unrelated"):
        trace = llmprof.convert(run, tmp_path / "out", client=False, clocks="unrelated")
    assert trace.meta["clock"] == "unrelated"
    assert trace.span_ns[0] == 0
    calls = analyze.collectives(trace)
    assert calls.filter(rank=1)["wait_ns"].null_count() == 3
    assert calls.filter(rank=1)["reason"].null_count() == 0
    assert_frame_equal(llmprof.map("collectives", trace, client=False), calls)
    out = str(tmp_path / "again")
    assert (
        main(
            [
                "convert",
                str(run),
                "-o",
                out,
                "--workers",
                "1",
                "--unrelated-clocks",
                "--no-progress",
            ]
        )
        == 0
    )
    assert "the clocks of the ranks are unrelated" in capsys.readouterr().err


def test_an_interrupt_leaves_what_is_done(run, tmp_path):
    def interrupt(what, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llmprof.convert(run, tmp_path / "out", client=False, progress=interrupt)
    assert len(list((tmp_path / "out").glob("part-*"))) == 2
    whole(tmp_path / "out")
    with pytest.raises(ReadError, match=r"is not a dataset.*continues where it was interrupted"):
        llmprof.open(tmp_path / "out")
    told = []
    same(
        llmprof.convert(
            run, tmp_path / "out", client=False, progress=lambda *words: told.append(words)
        ),
        llmprof.read(run, cache=False),
    )
    assert told[-1] == ("converting files", 1, 1)


INTERRUPTED = """
import os, signal, sys
from llmprof.cli.main import main
from llmprof.report.dataset.cluster import Workers

each = Workers.each

def with_workers(self, *things, **options):
    if self.count == 2:  # the terminal sends it to all processes of the command
        os.killpg(0, signal.SIGINT)
    return each(self, *things, **options)

Workers.each = with_workers
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [["findings"], ["convert", "-o", "again"]])
def test_ctrl_c_ends_the_processes_of_a_command_and_leaves_nothing(run, many, tmp_path, command):
    pytest.importorskip("distributed")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = str(run if command[0] == "convert" else many)
    done = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, command[0], path, *command[1:], "--workers", "2"],
        start_new_session=True,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, said = done.communicate()
    assert done.returncode == 130, said
    assert (out, said) == ("", "llmprof: interrupted\n")
    while _of_session(done.pid):
        time.sleep(0.1)
    assert not list(scratch.iterdir())


def _of_session(number):
    """Processes of a session that have not ended."""
    found = []
    for one in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(one.pid) == number and one.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(one.pid)
    return found


FULL = """
import json, resource, sys
import llmprof
from llmprof.errors import OutputError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    llmprof.convert(sys.argv[1], sys.argv[2], client=False)
except OutputError as error:
    print(json.dumps(str(error)))
"""


def test_a_disk_that_fills_in_the_middle_ends_it_and_the_next_call_goes_on(run, tmp_path):
    pytest.importorskip("resource")
    out = tmp_path / "out"
    largest = max(
        path.stat().st_size for path in _converted(run, tmp_path / "sizes").glob("part-*/*")
    )
    command = [sys.executable, "-c", FULL, str(run), str(out), str(largest - 100)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert "cannot write" in json.loads(done.stdout)
    assert not (out / MANIFEST).exists()
    whole(out)
    same(llmprof.convert(run, out, client=False), llmprof.read(run, cache=False))


def _converted(run, out):
    llmprof.convert(run, out, client=False)
    return out


def test_a_cluster_that_cannot_be_reached_is_an_error(run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("dask.distributed")
    monkeypatch.setattr(cluster, "REACHED_WITHIN", "0.3s")
    address = "tcp://127.0.0.1:9"
    with pytest.raises(
        ClusterError, match=r"the cluster at tcp://127.0.0.1:9 cannot be reached.*check the address"
    ):
        llmprof.convert(run, tmp_path / "out", client=address)
    assert (
        main(
            [
                "convert",
                str(run),
                "-o",
                str(tmp_path / "out"),
                "--cluster",
                address,
                "--no-progress",
            ]
        )
        == 2
    )
    assert "cannot be reached" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_dask_the_error_names_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    with pytest.raises(ClusterError, match=r"pip install 'llmprof\[scale\]'"):
        llmprof.convert(run, tmp_path / "out", client="tcp://127.0.0.1:9")
    monkeypatch.setattr(cluster, "cores", lambda: 1)
    assert llmprof.convert(run, tmp_path / "out").ranks == [0, 1, 2]


def test_a_cluster_without_workers_is_given_up(run, tmp_path, monkeypatch):
    pytest.importorskip("dask.distributed")
    monkeypatch.setattr(cluster, "WITHOUT_WORKERS_S", 0.2)
    monkeypatch.setattr(cluster, "_LOOK_EVERY_S", 0.1)
    with (
        cluster.local(0, processes=False) as client,
        pytest.raises(ClusterError, match=r"has had no worker for .*what was converted stays"),
    ):
        llmprof.convert(run, tmp_path / "out", client=client)


def test_a_rank_whose_workers_die_again_and_again_is_left_out_and_named(run, tmp_path, monkeypatch):
    lost = cluster.Lost("the workers that had it died")
    real = cluster.Workers.each

    def dying(self, function, things, *shared, **options):
        for thing, result in real(self, function, things, *shared, **options):
            yield thing, lost if getattr(thing, "name", "").startswith("rank1") else result

    monkeypatch.setattr(cluster.Workers, "each", dying)
    with warned(r"rank1.pt.trace.json could not be converted .*: the workers that had it died"):
        assert llmprof.convert(run, tmp_path / "out", client=False).ranks == [0, 2]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(tmp_path):
    pytest.importorskip("dask.distributed")
    run = run_folder(tmp_path / "run", ranks=24)
    killed = []
    with cluster.local(2) as client:

        def kill(what, done, total):
            if done == 2 and not killed:
                killed.extend(client.run(os.getpid).items())
                os.kill(killed[0][1], signal.SIGKILL)

        trace = llmprof.convert(run, tmp_path / "out", client=client, progress=kill)
        same(trace, llmprof.read(run, cache=False))
        whole(tmp_path / "out")
        until = time.monotonic() + 120
        while time.monotonic() < until:  # the scheduler learns of the death some time after it
            workers = client.scheduler_info(n_workers=-1)["workers"]
            if len(workers) == 2 and killed[0][0] not in workers:
                break
            time.sleep(0.05)
        alive = client.run(os.getpid)
        assert len(alive) == 2
        assert killed[0][1] not in alive.values()
        os.kill(next(iter(alive.values())), signal.SIGKILL)
        assert_frame_equal(llmprof.map("overlap", trace, client=client), analyze.overlap(trace))


@contextmanager
def _processes_of_dask(folder):
    """A scheduler and one worker, each a process; gives the address and the scheduler."""
    about = folder / "scheduler.json"
    common = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    host = ["--host", "127.0.0.1"]
    options = [
        *host,
        "--port",
        "0",
        "--dashboard-address",
        "127.0.0.1:0",
        "--scheduler-file",
        str(about),
    ]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", *options], **common
        )
    ]
    try:
        while not about.exists() and started[0].poll() is None:
            time.sleep(0.05)
        assert started[0].poll() is None, "the scheduler did not start"
        address = json.loads(about.read_text())["address"]
        worker = [
            address,
            *host,
            "--no-nanny",
            "--nthreads",
            "1",
            "--no-dashboard",
            "--death-timeout",
            "20",
        ]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_worker", *worker], **common
            )
        )
        yield address, started[0]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_scheduler_that_dies_is_an_error_that_says_so_and_the_dataset_stays_whole(tmp_path):
    pytest.importorskip("dask.distributed")
    trace = llmprof.convert(run_folder(tmp_path / "run", ranks=24), tmp_path / "out", client=False)
    before = {
        path: path.read_bytes() for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()
    }
    finished = []
    with _processes_of_dask(tmp_path) as (address, scheduler):

        def kill(what, done, total):
            finished.append(done)
            if done == 2:
                scheduler.kill()
                scheduler.wait()

        with pytest.raises(ClusterError, match=r"the cluster (went away|has had no worker)"):
            llmprof.map("overlap", trace, client=address, progress=kill)
    assert 2 <= finished[-1] < 24  # it died in the middle
    assert {
        path: path.read_bytes() for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()
    } == before
    whole(tmp_path / "out")
    assert_frame_equal(llmprof.map("overlap", trace, client=False), analyze.overlap(trace))
