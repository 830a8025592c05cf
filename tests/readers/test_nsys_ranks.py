import warnings

import pytest

import llmprof
from llmprof.analyze import ranks
from llmprof.errors import MixedRunsError, TraceWarning
from llmprof.readers.nsys.reader import numbered
from tests.readers.test_nsys import EPOCH, PID_A, PID_B, TABLES, write

SECOND = 1_000_000_000


def capture(*variables, host="node", arguments=()):
    """The table of a capture's metadata, with the environment and arguments of the process that
    was launched.
    """
    rows = [
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
        ("DEVICE_DISPLAY_NAME", host),
        *((f"PROCESS_0:ARGUMENT_{i}", argument) for i, argument in enumerate(arguments)),
        *(("PROCESS_0:ENVIRONMENT_VARIABLE", variable) for variable in variables),
    ]
    return "name TEXT, value TEXT", rows


def report(
    path,
    pids=(PID_A,),
    *,
    late_ns=0,
    tables=None,
    **rows,
):
    """An export with one kernel of 500 ns on each process, at 1,000 ns of a session that began
    ``late_ns`` later.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kernels = [
        (1000, 1500, i, 7, 11, pid, 2, 1, 4, 1, 1, 128, 1, 1, 32, 0, 0, None)
        for i, pid in enumerate(pids)
    ]
    changes = {
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_RUNTIME": [(900, 950, pid + 100, 11, 3) for pid in pids],
        "CUPTI_ACTIVITY_KIND_MEMCPY": None,
        "CUPTI_ACTIVITY_KIND_MEMSET": None,
        "NVTX_EVENTS": [(800, 1800, 59, "step", None, pid + 100, 0) for pid in pids],
        "PROCESSES": [(pid, 100, "python3") for pid in pids],
        "TARGET_INFO_SESSION_START_TIME": [(EPOCH + late_ns,)],
    }
    return write(
        path, {**TABLES, "META_DATA_CAPTURE": capture(), **(tables or {})}, **changes | rows
    )


def ranks_from(trace):
    return [(rank["rank"], rank["rank_from"]) for rank in trace.meta["ranks"]]


def read(*paths):
    with warnings.catch_warnings(action="error", category=TraceWarning):
        return llmprof.read(list(paths) if len(paths) > 1 else paths[0], cache=False)


def test_a_folder_with_a_report_a_rank(tmp_path):
    """``mpirun nsys profile -o r%q{RANK}``: the second session began 300 ns after the first."""
    report(tmp_path / "r0.sqlite")
    report(tmp_path / "r1.sqlite", late_ns=300)
    trace = read(tmp_path)
    assert trace.kernels.select("rank", "start_ns", "dur_ns").rows() == [
        (0, 200, 500),
        (1, 500, 500),
    ]
    assert ranks_from(trace) == [(0, "file name"), (1, "file name")]
    assert (trace.meta["world_size"], trace.meta["start_epoch_ns"]) == (2, EPOCH + 800)


def test_the_recorded_environment_goes_before_the_names(tmp_path):
    paths = []
    for name, rank in (("a", 2), ("b", 0), ("c", 1)):
        said = capture(
            f'OMPI_COMM_WORLD_RANK="{rank}"', 'OMPI_COMM_WORLD_SIZE="3"', 'HF_TOKEN="RANK=9"'
        )
        paths.append(
            report(tmp_path / f"{name}.sqlite", late_ns=rank, tables={"META_DATA_CAPTURE": said})
        )
    trace = read(*paths)
    assert trace.kernels.select("rank", "start_ns").rows() == [(0, 200), (1, 201), (2, 202)]
    assert {source for _, source in ranks_from(trace)} == {
        "recorded environment (OMPI_COMM_WORLD_RANK)"
    }
    assert "HF_TOKEN" not in str(trace.meta)


def test_the_environment_of_an_old_export(tmp_path):
    """Before ``META_DATA_CAPTURE`` there was only the environment of nsys itself, in one text."""
    for rank in (0, 1):
        text = f"A=1;SLURM_PROCID={rank};SLURM_NTASKS=2;PATH=/bin"
        system = {
            "TARGET_INFO_SYSTEM_ENV": ("name TEXT, value TEXT", [("DeviceEnvironment", text)])
        }
        report(
            tmp_path / f"x{7 - rank}.sqlite",
            tables={**system, "META_DATA_CAPTURE": ("name TEXT, value TEXT", [])},
        )
    with pytest.warns(TraceWarning, match="hosts without a name"):
        trace = llmprof.read(tmp_path, cache=False)
    assert {source for _, source in ranks_from(trace)} == {"recorded environment (SLURM_PROCID)"}


def test_one_report_of_several_says_its_rank_and_how_many_there_are(tmp_path):
    said = capture('RANK="3"', 'WORLD_SIZE="4"')
    path = report(tmp_path / "r3.sqlite", tables={"META_DATA_CAPTURE": said})
    with pytest.warns(TraceWarning, match="3 of 4 ranks are missing"):
        trace = llmprof.read(path, cache=False)
    assert trace.kernels["rank"].to_list() == [3]


def test_the_environment_of_a_launcher_is_not_that_of_its_workers(tmp_path):
    """``srun nsys profile torchrun``: Slurm's rank 0 is the launcher of two workers."""
    said = capture('SLURM_PROCID="0"', 'SLURM_NTASKS="1"')
    trace = read(
        report(tmp_path / "report.sqlite", (PID_A, PID_B), tables={"META_DATA_CAPTURE": said})
    )
    assert ranks_from(trace) == [(0, "order of the devices"), (1, "order of the devices")]


@pytest.mark.parametrize(
    "said",
    [
        capture(arguments=("--nnodes=2", "--node_rank={}")),
        capture(arguments=("--node-rank", "{}")),
        capture("NODE_RANK={}"),
        capture("SLURM_PROCID={}"),
    ],
)
def test_a_report_a_node(tmp_path, said):
    """The node's number orders the reports, and the devices the ranks in each."""
    for name, node in (("a", 1), ("b", 0)):
        columns, rows = said
        table = columns, [(key, value.format(node)) for key, value in rows]
        report(
            tmp_path / f"{name}.sqlite",
            (PID_A, PID_B),
            late_ns=node * 10,
            tables={"META_DATA_CAPTURE": table},
        )
    trace = read(tmp_path)
    assert trace.kernels.select("rank", "device", "start_ns").rows() == [
        (0, 0, 200),
        (1, 1, 200),
        (2, 0, 210),
        (3, 1, 210),
    ]
    assert trace.meta["world_size"] == 4


def test_names_of_processes_go_before_everything(tmp_path):
    for name, rank in (("r0", 1), ("r1", 0)):
        ranges = [(800, 1800, 59, "step", None, PID_A + 100, 0)]
        ranges.append((1, None, 76, f"MPI Rank {rank}", None, PID_A + 100, 0))
        report(tmp_path / f"{name}.sqlite", late_ns=rank, NVTX_EVENTS=ranges)
    trace = read(tmp_path)
    assert trace.kernels.select("rank", "start_ns").rows() == [(0, 200), (1, 201)]
    assert {source for _, source in ranks_from(trace)} == {"names of the processes"}


def test_reports_that_say_nothing_are_ordered_and_warned_of(tmp_path):
    report(tmp_path / "host_b.pid77.sqlite")
    report(tmp_path / "host_a.pid99.sqlite", late_ns=5)
    with pytest.warns(
        TraceWarning,
        match=r"no report states its rank: .* are assigned by the order of their names",
    ):
        trace = llmprof.read(tmp_path, cache=False)
    assert trace.kernels.select("rank", "start_ns").rows() == [(0, 205), (1, 200)]


def test_ranks_are_on_the_node_of_their_report_whose_name_is_not_told(tmp_path):
    for rank, host in enumerate(("secret-b", "secret-b", "secret-a", "secret-a")):
        about = {"META_DATA_CAPTURE": capture(host=host)}
        report(tmp_path / f"r{rank}.sqlite", late_ns=rank, tables=about)
    with pytest.warns(TraceWarning, match="the reports come from 2 hosts"):
        trace = llmprof.read(tmp_path, cache=False)
    assert [rank["node"] for rank in trace.meta["ranks"]] == [0, 0, 1, 1]
    assert "secret" not in str(trace.meta) + str(trace.coverage)
    known = ranks(trace, by="place")
    assert known.select("rank", "node").rows() == [(0, "0"), (1, "0"), (2, "1"), (3, "1")]
    assert set(known["evidence"]) == {"node: recording"}


@pytest.mark.parametrize(("variables", "nodes"), [(("NODE_RANK={}",), [0, 1]), ((), [None, None])])
def test_without_names_of_hosts_the_recorded_number_is_the_node(tmp_path, variables, nodes):
    for rank in (0, 1):
        said = capture(*(one.format(rank) for one in variables), host="")
        report(tmp_path / f"r{rank}.sqlite", late_ns=rank, tables={"META_DATA_CAPTURE": said})
    with pytest.warns(TraceWarning, match="hosts without a name"):
        trace = llmprof.read(tmp_path, cache=False)
    assert [rank.get("node") for rank in trace.meta["ranks"]] == nodes


def test_a_dataset_knows_the_nodes_too(tmp_path):
    for rank in (0, 1):
        report(
            tmp_path / "run" / f"r{rank}.sqlite",
            tables={"META_DATA_CAPTURE": capture(host=f"host{rank}")},
        )
    with pytest.warns(TraceWarning, match="2 hosts"):
        many = llmprof.convert(tmp_path / "run", tmp_path / "out", client=False)
    assert ranks(many, by="place")["node"].to_list() == ["0", "1"]


def test_sessions_one_after_the_other_are_no_ranks(tmp_path):
    """``--capture-range-end=repeat`` numbers the windows of one process."""
    report(tmp_path / "report.0.sqlite")
    report(tmp_path / "report.1.sqlite", late_ns=SECOND)
    with pytest.raises(MixedRunsError, match=r"after report\.0\.sqlite ended"):
        llmprof.read(tmp_path, cache=False)


def test_helpers_beside_a_rank_without_a_device(tmp_path):
    """Where nothing ran on a device, the process with most events is the rank."""
    for rank in (0, 1):
        ranges = [(800 + i, 900, 59, "step", None, PID_B + 101, 0) for i in range(3)]
        ranges.append((800, 801, 59, "helper", None, PID_A + 100, 0))
        path = tmp_path / f"r{rank}.sqlite"
        report(
            path,
            CUPTI_ACTIVITY_KIND_KERNEL=None,
            CUPTI_ACTIVITY_KIND_RUNTIME=None,
            NVTX_EVENTS=ranges,
        )
    trace = read(tmp_path)
    assert trace.markers.group_by("rank").len().sort("rank").rows() == [(-1, 2), (0, 3), (1, 3)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["r0", "r1"], ([0, 1], True)),
        (["out.3", "out.1"], ([3, 1], False)),
        (["job12_rank3", "job12_rank1"], ([3, 1], True)),
        (["node0_rank4", "node1_rank9"], ([0, 1], True)),
        (["report1", "report2"], ([1, 2], False)),
        (["prof_0_8812", "prof_1_8813"], None),
        (["a", "b"], None),
        (["r0", "r0"], None),
    ],
)
def test_numbers_in_names(names, expected):
    assert numbered(names) == expected
