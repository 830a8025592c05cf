from pathlib import Path

import pytest

from llmprof import read_metrics
from llmprof.errors import LlmprofError
from llmprof.trace import metrics

CAPTURE = Path(__file__).parents[1] / ".." / "shared" / "captures" / "ncu_tp1_eager"
PCT = "avg.pct_of_peak_sustained_elapsed"


@pytest.mark.parametrize(
    ("name", "title"),
    [
        (f"dram__throughput.{PCT}", "use of the device memory"),
        ("dram__bytes_read.sum", "traffic of the device memory"),
        ("dram__bytes.sum.per_second", "traffic of the device memory"),
        ("lts__t_sectors_srcunit_tex.sum", "traffic of the L2 cache"),
        ("lts__t_sector_hit_rate.pct", "L2 hit rate"),
        (f"sm__pipe_tensor_cycles_active.{PCT}", "use of the tensor cores"),
        ("sm__inst_executed_pipe_tensor_op_hmma.sum", "use of the tensor cores"),
        ("sm__inst_executed_pipe_xu.sum", "use of the other pipes"),
        ("sm__ops_path_tensor_src_bf16_dst_fp32.sum", "operations of the tensor cores"),
        ("sm__warps_active.avg.pct_of_peak_sustained_active", "achieved occupancy"),
        ("Achieved Occupancy", "achieved occupancy"),
        ("achieved occupancy", "achieved occupancy"),
        ("GPU Speed Of Light Throughput: Memory Throughput", "use of the memory system"),
        ("Memory Workload Analysis: Memory Throughput", "traffic of the device memory"),
        ("Memory Workload Analysis: L2 Hit Rate", "L2 hit rate"),
        ("launch__occupancy_limit_registers", "occupancy limit: registers"),
        ("launch__registers_per_thread", "registers per thread"),
        (
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
            "shared-memory bank conflicts",
        ),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", "threads of a warp at work"),
        ("breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed", "use of the SMs"),
        (
            "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
            "warp state long_scoreboard",
        ),
        (
            "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio",
            "warp state warpgroup_arrive",
        ),
        ("smsp__pcsamp_warps_issue_stalled_barrier_not_issued", "warp state barrier"),
        ("smsp__pcsamp_sample_count", "warp samples"),
        ("long_scoreboard", "warp state long_scoreboard"),
    ],
)
def test_metrics_are_found_under_their_names(name, title):
    found = metrics.explain(name)
    assert found.title == title
    assert found.known
    assert all((found.meaning, found.good, found.action, found.source))


def test_an_unknown_metric_is_explained_by_its_parts_and_names_like_it():
    found = metrics.explain("dram__throughputs_odd.max.per_second")
    assert not found.known
    assert found.parts == {
        "dram": "device memory (HBM or GDDR) behind the L2 cache",
        "throughputs_odd": "throughputs odd",
        "max": "the largest of all instances of the unit",
        "per_second": "per second",
    }
    assert "dram__throughput" in found.near
    assert "Like it: dram__throughput" in str(found)
    with pytest.raises(LlmprofError, match="Achieved Occupancy"):
        metrics.explain("Acheived Ocupancy")
    with pytest.raises(LlmprofError, match="glossary"):
        metrics.explain("???")


@pytest.mark.skipif(not CAPTURE.is_dir(), reason="the captures are not here")
def test_the_metrics_of_a_full_set_can_all_be_explained():
    names = read_metrics(CAPTURE / "raw.csv").metrics["metric"].unique().sort().to_list()[::5]
    refused = []
    known = 0
    for name in names:
        try:
            known += metrics.explain(name).known
        except LlmprofError:
            refused.append(name)
    assert known > 0.4 * len(names)
    assert len(refused) < 0.02 * len(names), refused
