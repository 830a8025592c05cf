import gzip
import lzma
import stat
import struct
import sys
from pathlib import Path

import polars as pl
import pytest

from llmprof import read_metrics
from llmprof.errors import LlmprofError, ReadError, TraceWarning, UnknownFormatError
from llmprof.readers.ncu.reader import base_unit
from llmprof.trace import schema
from tests.readers import ncu_reports

SHARED = Path(__file__).parents[2] / ".." / "shared"
CAPTURE = SHARED / "captures" / "ncu_tp1_eager"
REAL = SHARED / "real" / "ncu"
needs_captures = pytest.mark.skipif(not CAPTURE.is_dir(), reason="the captures are not here")
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")

LAUNCH = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
]
LAUNCH += ["Grid Size", "Device", "CC"]
DETAILS = [*LAUNCH, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
RULES = [
    "Rule Name",
    "Rule Type",
    "Rule Description",
    "Estimated Speedup Type",
    "Estimated Speedup",
]
SECTION = "GPU Speed Of Light Throughput"


def quoted(*cells):
    return ",".join(f'"{cell}"' for cell in cells)


def launch(number=0, name="gemm", process=7, grid="(2, 64, 1)"):
    return [
        str(number),
        str(process),
        "python",
        "host",
        name,
        "1",
        "7",
        "(384, 1, 1)",
        grid,
        "0",
        "9.0",
    ]


def metric(value, unit, name="Duration", **of_launch):
    return quoted(*launch(**of_launch), SECTION, name, unit, value, "")


def rule(text, *speedup, **of_launch):
    return quoted(
        *launch(**of_launch),
        "SpeedOfLight",
        "",
        "",
        "",
        "SOLBottleneck",
        "OPT",
        text,
        *(speedup or ("", "")),
    )


def read(tmp_path, text, name="x.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_metrics(path)


def long_page(*rows):
    return "\n".join([quoted(*DETAILS, *RULES), *rows, ""])


def wide_page(names, units, *rows):
    lines = [
        quoted(*LAUNCH, *names),
        quoted(*[""] * len(LAUNCH), *units),
        *(quoted(*row) for row in rows),
    ]
    return "\n".join([*lines, ""])


def rows_of(metrics):
    return metrics.metrics.select("kernel_id", "metric", "unit", "value", "text").rows()


@pytest.mark.parametrize(
    ("unit", "base", "factor"),
    [
        ("", "1", 1),
        ("%", "%", 1),
        ("byte", "B", 1),
        ("Kbyte", "B", 1e3),
        ("Gbyte", "B", 1e9),
        ("us", "ns", 1e3),
        ("second", "ns", 1e9),
        ("msecond", "ns", 1e6),
        ("hz", "Hz", 1),
        ("Ghz", "Hz", 1e9),
        ("cycle/nsecond", "Hz", 1e9),
        ("Mbyte/s", "B/s", 1e6),
        ("Gbyte/second", "B/s", 1e9),
        ("sector/usecond", "sector/s", 1e6),
        ("Kbyte/cycle", "B/cycle", 1e3),
        ("Kbyte/block", "B/block", 1e3),
        ("%/Kbyte", "%/B", 1e-3),
        ("register/thread", "register/thread", 1),
        ("furlong", "furlong", 1),
    ],
)
def test_units_become_base_units(unit, base, factor):
    assert base_unit(unit) == (base, pytest.approx(factor))


def test_the_raw_page_has_units_in_its_second_row(tmp_path):
    names = [
        "gpu__time_duration.sum",
        "dram__bytes_read.sum",
        "launch__grid_size",
        "launch__policy",
        "smsp__x.avg",
    ]
    page = wide_page(
        names,
        ["us", "Mbyte", "", "", "%"],
        [*launch(0), "75.552000", "64.257024", "2,048", "PolicySpread", ""],
        [*launch(1, "norm", grid="(2048, 1, 1)"), "1,008.896", "0", "n/a", "", "nan"],
    )
    found = read(tmp_path, page)
    assert found.metrics.schema == schema.PROFILES["metrics"].schema
    assert found.rules.schema == schema.PROFILES["rules"].schema
    assert rows_of(found) == [
        (0, "gpu__time_duration.sum", "ns", 75552.0, None),
        (0, "dram__bytes_read.sum", "B", 64257024.0, None),
        (0, "launch__grid_size", "1", 2048.0, None),
        (0, "launch__policy", "1", None, "PolicySpread"),
        (1, "gpu__time_duration.sum", "ns", 1008896.0, None),
        (1, "dram__bytes_read.sum", "B", 0.0, None),
        (1, "launch__grid_size", "1", None, "n/a"),
        (1, "smsp__x.avg", "%", None, "nan"),
    ]
    assert found.metrics.row(0, named=True) | {"value": 0} == {
        "kernel_id": 0,
        "kernel_name": "gemm",
        "grid": "(2, 64, 1)",
        "block": "(384, 1, 1)",
        "stream": 7,
        "device": 0,
        "section": None,
        "metric": "gpu__time_duration.sum",
        "unit": "ns",
        "value": 0,
        "text": None,
    }
    kernels = found.kernels
    assert kernels["dur_ns"].to_list() == [75552.0, 1008896.0]
    assert kernels.select("grid_x", "grid_y", "block_x", "process", "id").rows() == [
        (2, 64, 384, 7, 0),
        (2048, 1, 384, 7, 1),
    ]


def test_the_details_page_has_a_unit_a_row_sections_and_rules(tmp_path):
    text = 'Look at "Launch Statistics", and at\nmore, then stop'.replace('"', '""')
    first = [
        metric("75.55", "us"),
        metric("884.08", "Gbyte/s", "Memory Throughput"),
        rule(text, "global", "17.38"),
    ]
    found = read(tmp_path, long_page(*first, metric("8,640", "nsecond", number=1, name="Duration")))
    assert rows_of(found)[0] == (0, "Duration", "ns", 75550.0, None)
    assert [row[1:4] for row in rows_of(found)[1:]] == [
        ("Memory Throughput", "B/s", pytest.approx(884.08e9)),
        ("Duration", "ns", 8640.0),
    ]
    assert found.metrics["section"].unique().to_list() == [SECTION]
    assert found.rules.rows() == [
        (
            0,
            "SpeedOfLight",
            "SOLBottleneck",
            "OPT",
            text.replace('""', '"'),
            pytest.approx(17.38),
            "global",
        )
    ]


def test_older_pages_have_no_rules_and_fewer_columns(tmp_path):
    header = [*LAUNCH[:5], "Kernel Time", "Context", "Stream", *DETAILS[-4:]]
    row = [*launch()[:5], "2020-01-01", "1", "7", SECTION, "Duration", "usecond", "2.5"]
    found = read(tmp_path, f"{quoted(*header)}\n{quoted(*row)}\n")
    assert rows_of(found) == [(0, "Duration", "ns", 2500.0, None)]
    assert found.kernels.select("grid", "grid_x", "process").rows() == [(None, None, 7)]


def test_body_item_labels_tell_metrics_of_one_name_apart(tmp_path):
    header = [*LAUNCH, "Section Name", "Body Item Label", *DETAILS[-3:], *RULES]
    rows = [
        [*launch(), "Roofline", label, "SM Frequency", "Ghz", value, ""]
        for label, value in (("Half", "1"), ("Single", "2"))
    ]
    found = read(tmp_path, "\n".join([quoted(*header), *(quoted(*row) for row in rows)]))
    assert found.metrics.select("section", "value").rows() == [
        ("Roofline: Half", 1e9),
        ("Roofline: Single", 2e9),
    ]
    assert found.wide().columns[-2:] == [
        "Roofline: Half: SM Frequency",
        "Roofline: Single: SM Frequency",
    ]


def test_program_output_between_rows_is_counted_and_left_out(tmp_path):
    lines = [
        "INFO loading, 3 shards",
        "==PROF== Connected to process 7",
        quoted(*DETAILS, *RULES),
        metric("1", "us"),
        '==PROF== Profiling "gemm": 0%....100% - 38 passes',
        'step "1" of 9, "loss" 0.5',
        "1,2,3",
        f" 50%|#####     | 1/2{metric('2', 'us', 'Other')}",
        rule("two\nlines"),
        "{'done': True}",
        metric("3", "us", number=1),
        "==WARNING== something",
        "",
    ]
    found = read(tmp_path, "\n".join(lines))
    assert [row[:1] + row[3:4] for row in rows_of(found)] == [(0, 1000.0), (0, 2000.0), (1, 3000.0)]
    assert found.rules["text"].to_list() == ["two\nlines"]
    assert found.coverage["other_lines"] == 8
    assert found.coverage["said"][-1] == "==WARNING== something"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "text", ['say "hi", then, go', 'an odd " quote', 'ends with "', "a\n\nb, c"]
)
def test_rules_with_bad_quotes_keep_their_text_and_the_rows_after_them(tmp_path, text, line_end):
    page = long_page(metric("1", "us"), rule(text, "local", "5"), metric("2", "us", number=1))
    found = read(tmp_path, page.replace("\n", line_end))
    assert [row[3] for row in rows_of(found)] == [1000.0, 2000.0]
    assert found.rules.height == 1
    said = found.rules["text"][0].replace('"', "").replace("\n", " ")
    assert said.startswith(text.replace('"', "").replace("\n", " ").rstrip())
    if text.count('"') != 1:  # with an odd quote the cells after the text cannot be told from it
        assert found.rules["estimated_speedup_pct"].to_list() == [5.0]


def test_pages_cut_in_the_middle_of_a_row_keep_what_is_whole(tmp_path):
    page = long_page(metric("1", "us"), metric("25.5", "us", "Other"))
    with pytest.warns(TraceWarning, match="the end is missing in 1 row"):
        found = read(tmp_path, page[: page.index("25.5") + 2])
    assert [row[1] for row in rows_of(found)] == ["Duration"]
    assert found.coverage["cut_rows"] == 1
    page = wide_page(
        ["a.sum", "b.sum", "c.sum"],
        ["byte", "byte", "us"],
        [*launch(0), "1", "2", "3"],
        [*launch(1), "4", "5678", "9"],
    )
    with pytest.warns(TraceWarning, match="the end is missing"):
        found = read(tmp_path, page[: page.index("5678") + 2])
    assert [(row[0], row[3]) for row in rows_of(found)] == [
        (0, 1.0),
        (0, 2.0),
        (0, 3000.0),
        (1, 4.0),
    ]
    with pytest.warns(TraceWarning, match="the end is missing"):
        found = read(tmp_path, page[: page.index('"1","7","python","host","gemm"') + 20])
    assert found.kernels.height == 1


def test_a_plain_csv_that_a_program_rewrote_is_read(tmp_path):
    header = ",".join([*LAUNCH, "a.sum"])
    row = '0,7,python,host,"f(int, int)",1,7,"(384, 1, 1)","(2, 64, 1)",0,9.0,"1,234"'
    found = read(tmp_path, f"{header}\n,,,,,,,,,,,Kbyte\n{row}")
    assert rows_of(found) == [(0, "a.sum", "B", 1234000.0, None)]
    assert found.metrics["kernel_name"][0] == "f(int, int)"
    with pytest.warns(TraceWarning, match="units is missing"):
        found = read(tmp_path, f"{quoted(*LAUNCH, 'a.sum')}\n{quoted(*launch(), '5')}\n")
    assert rows_of(found) == [(0, "a.sum", "1", 5.0, None)]


def test_two_runs_in_one_file_have_launches_of_their_own(tmp_path):
    first = long_page(metric("1", "us"), metric("2", "us", number=1))
    second = long_page(metric("3", "us", process=8), metric("4", "us", number=1, process=8))
    found = read(tmp_path, first + "more output\n" + second)
    assert [(row[0], row[3]) for row in rows_of(found)] == [
        (0, 1000.0),
        (1, 2000.0),
        (2, 3000.0),
        (3, 4000.0),
    ]
    assert found.kernels["run"].to_list() == [0, 0, 1, 1]
    rows = [
        metric("1", "us"),
        metric("2", "us", number=1),
        metric("3", "us"),
        metric("4", "us", number=1),
    ]
    found = read(tmp_path, long_page(*rows))
    assert found.kernels.select("run", "id", "dur_ns").rows() == [
        (0, 0, 1000.0),
        (0, 1, 2000.0),
        (1, 0, 3000.0),
        (1, 1, 4000.0),
    ]
    pages = [
        wide_page(["a.sum", "b.sum"], ["us", ""], [*launch(), value, "7"]) for value in ("1", "2")
    ]
    found = read(tmp_path, "".join(pages))
    assert found.kernels["run"].to_list() == [0, 1]
    first = long_page(metric("1", "us"), metric("25.5", "us", "Other"))
    page = first[: first.index("25.5") + 2] + long_page(metric("3", "us", process=8))
    with pytest.warns(TraceWarning, match="the end is missing"):
        found = read(tmp_path, page)
    assert found.kernels.select("run", "dur_ns").rows() == [(0, 1000.0), (1, 3000.0)]


def test_pages_of_the_same_launches_are_put_together(tmp_path):
    (tmp_path / "details.csv").write_text(
        long_page(metric("75.55", "us"), rule("x"), metric("8.9", "us", number=1))
    )
    raw = wide_page(
        ["gpu__time_duration.sum"], ["us"], [*launch(0), "75.552"], [*launch(1), "8.896"]
    )
    (tmp_path / "raw.csv").write_text(raw)
    (tmp_path / "notes.txt").write_text("hello")
    for given in (tmp_path, [tmp_path / "details.csv", tmp_path / "raw.csv"]):
        found = read_metrics(given)
        assert found.kernels["dur_ns"].to_list() == [75552.0, 8896.0]
        assert found.metrics["metric"].to_list() == ["Duration", "gpu__time_duration.sum"] * 2
        assert found.rules["kernel_id"].to_list() == [0]


def test_interleaved_rows_of_two_processes_stay_apart(tmp_path):
    rows = [metric("1", "us"), metric("2", "us", number=1, process=8), metric("3", "%", "Other")]
    found = read(tmp_path, long_page(rows[0], rows[2], rows[1]))
    assert [row[0] for row in rows_of(found)] == [0, 0, 1]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_compressed_files_are_known_by_content(tmp_path, pack):
    found = read(tmp_path, pack(long_page(metric("1", "us")).encode()), "no_suffix")
    assert rows_of(found) == [(0, "Duration", "ns", 1000.0, None)]


def test_a_compressed_file_that_ends_early_gives_what_it_has(tmp_path):
    page = long_page(*(metric(str(i), "us", number=i) for i in range(500)))
    data = gzip.compress(page.encode(), compresslevel=0)
    with pytest.warns(TraceWarning) as warned:
        found = read(tmp_path, data[: len(data) // 2])
    assert "ends early" in str(warned[0].message)
    assert 0 < found.kernels.height < 500
    assert read(tmp_path, long_page(metric("1", "us")).encode("utf-16")).metrics.height == 1


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", ReadError, "is empty"),
        (b"a,b\n1,2\n", UnknownFormatError, "not a file of Nsight Compute"),
        (b"\0\1\2binary", UnknownFormatError, "not a file of Nsight Compute"),
        (b"\x1f\x8b\x08garbage", ReadError, "damaged"),
        (b"  Section: Occupancy\n Metric Name  Metric Unit\n", UnknownFormatError, "--csv"),
        (b"==WARNING== No kernels were profiled.\n", ReadError, "launch-skip"),
        (
            b"==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n",
            ReadError,
            "NVreg_RestrictProfiling",
        ),
        (b"==ERROR== The application returned an error code (11).\n", ReadError, "error code"),
    ],
)
def test_what_is_no_result_is_refused_with_a_reason(tmp_path, content, error, message):
    with pytest.raises(error, match=message):
        read(tmp_path, content)


def test_missing_files_and_empty_lists_are_refused(tmp_path):
    with pytest.raises(ReadError, match="cannot be read"):
        read_metrics(tmp_path / "nothing.csv")
    with pytest.raises(ReadError, match="no file"):
        read_metrics([])
    with pytest.raises(UnknownFormatError, match="has no file"):
        read_metrics(tmp_path)


def test_a_heading_alone_gives_empty_frames_and_a_warning(tmp_path):
    with pytest.warns(TraceWarning, match="no result"):
        found = read(tmp_path, long_page())
    assert found.metrics.height == 0
    assert found.kernels.height == 0
    page = long_page(metric("1", "us")) + "==ERROR== The application returned an error code (11).\n"
    with pytest.warns(TraceWarning, match="error code"):
        assert read(tmp_path, page).metrics.height == 1


def test_wide_takes_names_in_their_order_and_refuses_unknown_ones(tmp_path):
    page = wide_page(
        ["a.sum", "b.sum", "c"],
        ["us", "", ""],
        [*launch(0), "1", "2", "x"],
        [*launch(1), "3", "", "y"],
    )
    found = read(tmp_path, page)
    wide = found.wide("c", "a.sum")
    assert wide.columns[-2:] == ["c", "a.sum"]
    assert wide["c"].to_list() == ["x", "y"]
    assert wide["a.sum"].to_list() == [1000.0, 3000.0]
    assert found.wide()["b.sum"].to_list() == [2.0, None]
    with pytest.raises(LlmprofError, match="not measured"):
        found.wide("d")


REPORT = ncu_reports.report()


def ncu_on_path(tmp_path, monkeypatch, body):
    program = tmp_path / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setitem(sys.modules, "ncu_report", None)


def test_a_report_is_exported_by_the_ncu_on_the_path(tmp_path, monkeypatch):
    raw = wide_page(["gpu__time_duration.sum"], ["ns"], [*launch(), "75552"])
    details = long_page(metric("75,552", "ns"), rule("x"))
    ncu_on_path(
        tmp_path,
        monkeypatch,
        f"assert sys.argv[1] == '--import' and open(sys.argv[2], 'rb').read() == {REPORT!r}\n"
        f"print({raw!r} if 'raw' in sys.argv else {details!r})",
    )
    found = read(tmp_path, lzma.compress(REPORT), "r.ncu-rep.xz")
    assert found.kernels["dur_ns"].to_list() == [75552.0]
    assert found.rules.height == 1


@needs_captures
def test_a_whole_report_is_not_called_damaged_where_ncu_exports_it(tmp_path, monkeypatch):
    # 12 metrics of each kernel, lists of samples and its name, are no values of the CSV pages
    pages = [str(CAPTURE / f"{page}.csv") for page in ("raw", "details")]
    ncu_on_path(tmp_path, monkeypatch, f"print(open({pages!r}['details' in sys.argv]).read())")
    found = read(
        tmp_path, lzma.decompress((CAPTURE / "report.ncu-rep.xz").read_bytes()), "r.ncu-rep"
    )
    assert found.kernels.height == 24
    assert found.coverage.get("lost_kernels") == 0


def test_a_report_that_ncu_refuses_says_why(tmp_path, monkeypatch):
    ncu_on_path(
        tmp_path, monkeypatch, "print('==ERROR== newer version', file=sys.stderr); sys.exit(3)"
    )
    with pytest.raises(ReadError, match="newer version"):
        read(tmp_path, REPORT, "r.ncu-rep")


def test_a_report_without_package_and_program_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReadError, match=r"llmprof\[ncu\]"):
        read(tmp_path, REPORT, "r.ncu-rep")


class FakeMetric:
    def __init__(self, value, unit=""):
        self._value, self._unit = value, unit

    def value(self):
        return self._value

    def unit(self):
        return self._unit


class FakeMetricWithoutValue(FakeMetric):
    """As NVIDIA's package gives a metric that has no value: ``value()`` is 0."""

    def has_value(self):
        return False


class FakeAction:
    metrics = {  # noqa: RUF012
        "lts__t_sector_hit_rate.pct": FakeMetricWithoutValue(0.0, "%"),
        "gpu__time_duration.sum": FakeMetric(75552.0, "ns"),
        "launch__policy": FakeMetric("Spread"),
        "nothing": FakeMetric(None),
        "breakdown:x": FakeMetric(1),
        **{
            f"launch__{side}_dim_{axis}": FakeMetric(n)
            for side, n in (("grid", 2), ("block", 384))
            for axis in "xyz"
        },
    }

    def name(self, _):
        return "gemm"

    def metric_names(self):
        return tuple(self.metrics)

    def metric_by_name(self, name):
        return self.metrics[name]

    def rule_results_as_dicts(self):
        text = "See @section:MemoryWorkload:Memory Workload@ and @url:Guide:https://docs.nvidia.com/x@."
        message = {
            "rule_message": {"message": text, "type": 2},
            "rule_identifier": "R",
            "section_identifier": "S",
        }
        return [
            message | {"speedup_estimation": {"type": 2, "speedup": 12.5}},
            {"rule_identifier": "silent"},
        ]


def test_a_report_is_read_by_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", ncu_reports.Library(FakeAction(), FakeAction()))
    found = read(tmp_path, REPORT, "r.ncu-rep")
    assert (
        found.kernels.select("kernel_name", "grid", "block", "dur_ns").rows()
        == [("gemm", "(2, 2, 2)", "(384, 384, 384)", 75552.0)] * 2
    )
    assert found.wide("launch__policy")["launch__policy"].to_list() == ["Spread"] * 2
    assert "breakdown:x" not in found.metrics["metric"].to_list()
    without = found.metrics.filter(pl.col("value").is_null() & pl.col("text").is_null())
    assert without.filter(pl.col("kernel_id") == 0).select("metric", "unit").rows() == [
        ("lts__t_sector_hit_rate.pct", "%"),
        ("nothing", "1"),
    ]
    said = "See Memory Workload and Guide (https://docs.nvidia.com/x)."
    assert found.rules.row(0)[1:] == ("S", "R", "OPT", said, 12.5, "global")

    monkeypatch.setitem(sys.modules, "ncu_report", ncu_reports.Library())
    with pytest.raises(ReadError, match="no results, or is damaged"):
        read(tmp_path, REPORT, "r.ncu-rep")


@needs_captures
def test_the_capture_of_two_layers():
    found = read_metrics(CAPTURE)
    kernels = found.kernels
    assert kernels.height == 24
    assert kernels["device_name"].unique().to_list() == ["NVIDIA H200"]
    assert kernels["dur_ns"].sum() == pytest.approx(841_792)
    assert found.rules.height == 284
    assert found.metrics.filter(pl.col("section").is_null())["metric"].n_unique() == 2215
    assert found.metrics.filter(pl.col("section").is_not_null())["metric"].n_unique() == 86
    assert found.coverage["cut_rows"] == found.coverage["broken_rows"] == 0


@needs_real
@pytest.mark.parametrize(
    "path", sorted(REAL.glob("*.csv")) if REAL.is_dir() else [], ids=lambda p: p.name
)
def test_every_real_page_is_read_without_a_loss(path):
    found = read_metrics(path)
    assert found.kernels.height >= 1
    assert (
        found.coverage["cut_rows"]
        == found.coverage["broken_rows"]
        == found.coverage["other_lines"]
        == 0
    )
    assert found.metrics["unit"].str.contains("second|[KMGT]byte|usec").sum() == 0


@needs_captures
def test_the_report_of_the_capture_holds_what_its_pages_hold():
    pytest.importorskip("ncu_report", reason="the optional package ncu-report is not here")
    report, raw = read_metrics(CAPTURE / "report.ncu-rep.xz"), read_metrics(CAPTURE / "raw.csv")
    assert report.kernels.height == 24
    for name in (
        "gpu__time_duration.sum",
        "dram__bytes_read.sum",
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    ):
        assert report.values(name)["value"].to_list() == pytest.approx(
            raw.values(name)["value"].to_list()
        )
    everything = read_metrics(
        [CAPTURE / "report.ncu-rep.xz", CAPTURE / "raw.csv", CAPTURE / "details.csv"]
    )
    assert everything.kernels.height == 24
    assert everything.kernels["process"].unique().to_list() == [5387]


NAMES = ["gpu__time_duration.sum", "launch__waves", "device__attribute_display_name"]


def small_report():
    """Blocks with two kernels, of three metrics each."""
    first = ncu_reports.result("gemm", {0: 1000.0, 1: 4.0, 2: "GPU X"}, ["The grid is too small"])
    second = ncu_reports.result("copy", {0: 500.0, 1: 2.0, 2: "GPU X"})
    return [ncu_reports.block([first], NAMES), ncu_reports.block([second])]


def opened(tmp_path, data):
    pytest.importorskip("ncu_report", reason="the optional package ncu-report is not here")
    return read(tmp_path, data, "r.ncu-rep")


def zeroed(data, what):
    assert data.count(what) == 1
    return data.replace(what, bytes(len(what)))


def test_what_a_report_has_lost_is_said_as_far_as_it_can_be_told(tmp_path):
    found = opened(tmp_path, ncu_reports.report(*small_report()))
    assert (found.kernels.height, found.metrics.height, found.rules.height) == (2, 6, 1)
    assert found.coverage["lost_kernels"] == found.coverage["lost_metrics"] == 0
    with pytest.warns(TraceWarning, match="zeros"):
        assert (
            opened(tmp_path, zeroed(ncu_reports.report(*small_report()), b"too small")).rules.height
            == 1
        )
    first, second = small_report()
    assert opened(tmp_path, ncu_reports.report(first)).kernels.height == 1
    changed = second.replace(struct.pack("<d", 500.0), struct.pack("<d", 501.0))
    assert opened(tmp_path, ncu_reports.report(first, changed)).values(NAMES[0])[
        "value"
    ].to_list() == [1000.0, 501.0]


@pytest.mark.parametrize(("cut", "lost"), [(4, (1, 3)), (30, (1, 2))])
def test_a_report_that_is_cut_says_what_it_lost(tmp_path, cut, lost):
    with pytest.warns(TraceWarning, match="damaged"):
        found = opened(tmp_path, ncu_reports.report(*small_report())[:-cut])
    assert found.kernels["kernel_name"].to_list() == ["gemm"]
    assert (found.coverage["lost_kernels"], found.coverage["lost_metrics"]) == lost


@pytest.mark.parametrize("rest", [b"\x10\0", ncu_reports.sized(b"\x80")], ids=["length", "number"])
def test_a_block_that_cannot_be_followed_is_said(tmp_path, rest):
    with pytest.warns(TraceWarning, match="damaged"):
        found = opened(tmp_path, ncu_reports.report(small_report()[0], rest))
    assert found.kernels["kernel_name"].to_list() == ["gemm"]


def test_a_kernel_of_a_report_that_cannot_be_opened_is_lost_with_its_metrics(tmp_path):
    begin, end = small_report()
    value = ncu_reports.field(1, 1) + ncu_reports.field(2, ncu_reports.field(3, 4.0))
    broken = zeroed(begin, ncu_reports.field(13, value))
    with pytest.warns(TraceWarning, match="damaged"):
        found = opened(tmp_path, ncu_reports.report(broken, end))
    assert found.kernels["kernel_name"].to_list() == ["copy"]
    assert (found.coverage["lost_kernels"], found.coverage["lost_metrics"]) == (1, 1)


def test_a_broken_block_never_reaches_the_package_and_the_blocks_after_it_are_read(tmp_path):
    """A length that is negative as 32 bits with a sign makes NVIDIA's package end the process."""
    first, second = small_report()
    third = ncu_reports.block([ncu_reports.result("third", {0: 1.0})])
    part = ncu_reports.sized(ncu_reports.result("copy", {0: 500.0, 1: 2.0, 2: "GPU X"}))
    broken = second.replace(part, b"\xff\xff\xff\xff" + part[4:])
    with pytest.warns(TraceWarning, match="damaged"):
        found = opened(tmp_path, ncu_reports.report(first, broken, third))
    assert found.kernels["kernel_name"].to_list() == ["gemm", "third"]
    assert (found.coverage["lost_kernels"], found.coverage["lost_metrics"]) == (1, 3)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1.234.567,8", "12,5", "3.000", "7"], [1234567.8, 12.5, 3000.0, 7.0]),
        (["1 234,75", "0,125", "90"], [1234.75, 0.125, 90.0]),
        (["5\u202f432,10", "1"], [5432.1, 1.0]),
        (["98\u2019765.40", "1\u2019000"], [98765.4, 1000.0]),
        (["98'765.40", "2.125"], [98765.4, 2.125]),
        (["1,234,567.5", "2,500", "2.125"], [1234567.5, 2500.0, 2.125]),
        (["2.125", "7"], [2.125, 7.0]),
    ],
)
def test_numbers_of_any_locale(tmp_path, values, expected):
    """Which mark is the decimal one is known from the numbers that show it."""
    names = [f"a__m{i}.sum" for i in range(len(values))]
    units = quoted(*[""] * len(LAUNCH), *["us"] * len(values))
    page = "\n".join([quoted(*LAUNCH, *names), units, quoted(*launch(), *values)])
    found = read(tmp_path, page + "\n").metrics
    assert found["value"].to_list() == pytest.approx([1000 * value for value in expected])
