"""How the command line lists the rows of each analysis: its columns, their order, its options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from llmprof import plugins


@dataclass(frozen=True, slots=True)
class Listing:
    """How the command line lists the rows of an analysis."""

    analysis: str
    """Name of the analysis."""
    columns: str = ""
    """Columns that are shown, separated by spaces, as far as the frame has them; all if empty."""
    largest_first: str = ""
    """Column by which rows are sorted, largest first; if empty, they keep the order of the
    frame.
    """
    takes: tuple[str, ...] = ()
    """Optional arguments besides the trace that options of the same names set."""
    spare: str = ""
    """Columns that a narrow terminal does without, in this order, before those on the right."""


LISTINGS: Final = (
    Listing(
        "steps",
        (
            "rank step phase count start_ns dur_ns host_dur_ns prefill_tokens decode_requests"
            " total_ns mean_ns median_ns min_ns max_ns source"
        ),
        takes=("steady",),
    ),
    Listing(
        "layers",
        (
            "rank step phase layer kind stage occurrence count start_ns dur_ns total_ns busy_ns"
            " kernels host_dur_ns mean_ns median_ns min_ns max_ns"
        ),
        spare="host_dur_ns occurrence",
    ),
    Listing(
        "overlap",
        (
            "rank step phase stage total_ns compute_ns exposed_communication_ns exposed_wait_ns"
            " exposed_transfer_ns exposed_unknown_ns hidden_communication_ns exposed_copy_ns"
            " idle_ns"
        ),
        spare=(
            "exposed_transfer_ns exposed_unknown_ns exposed_copy_ns exposed_wait_ns"
            " hidden_communication_ns"
        ),
    ),
    Listing(
        "collectives",
        (
            "rank step layer call kind algorithm bytes count dur_ns median_ns wait_ns transfer_ns"
            " last_rank last_count last_share late_median_ns late_p90_ns bus_gbps peak_gbps"
            " peak_share reason"
        ),
        spare="call algorithm",
    ),
    Listing(
        "idle",
        (
            "rank step count total_ns share start_ns dur_ns gap_ns cause host_name waited_name"
            " next_name mean_ns median_ns max_ns"
        ),
        largest_first="dur_ns",
    ),
    Listing(
        "stream_gaps",
        "rank stream step start_ns dur_ns busy_share next_name",
        largest_first="dur_ns",
    ),
    Listing(
        "launch_delay",
        "rank step kernels launches launched_share host_dur_ns median_ns p95_ns min_ns max_ns",
    ),
    Listing("host_synchronisation", largest_first="host_dur_ns"),
    Listing(
        "queue_length",
        (
            "rank device stream time_ns length count mean_length max_length full_ns wait_ns"
            " missing_count"
        ),
    ),
    Listing(
        "critical_path",
        "step phase rank part name layer stage start_ns dur_ns evidence",
        spare="evidence phase",
    ),
    Listing(
        "opportunities",
        (
            "phase part stage operator shapes total_ns share bound_share bound_by gap_ns gain_ns"
            " gain_share reason"
        ),
        takes=("model",),
    ),
    Listing(
        "slack",
        (
            "rank step name layer stage count total_ns path_ns path_share dur_ns slack_ns"
            " pace_slack_ns reason"
        ),
    ),
    Listing(
        "kernels", "rank step phase stage total_ns share count median_ns max_ns category readable"
    ),
    Listing(
        "operators",
        (
            "rank phase gap_ns total_ns count operator kernel shapes flop_per_s bytes_per_s"
            " bound_by bound_share cause reason"
        ),
        largest_first="total_ns",
        takes=("model",),
        spare="flop_per_s bytes_per_s",
    ),
    Listing("operator_calls", "total_ns share count median_ns kind operator shapes reason"),
    Listing(
        "fusion",
        (
            "phase gain_ns recorded_ns total_ns share count per_step length saved_launches"
            " saved_bytes name category"
        ),
    ),
    Listing(
        "counters",
        (
            "rank phase stage layer step cause gap name counter mean_value unit own_share dur_ns"
            " count max_value device"
        ),
    ),
    Listing(
        "spikes",
        "rank step phase count dur_ns typical_ns ratio gap_ns start_ns name",
        largest_first="gap_ns",
    ),
    Listing("modules", "rank depth count host_ns device_ns own_device_ns kernels path"),
    Listing(
        "memory",
        (
            "rank device time_ns part holder operator step phase peak_allocated_bytes"
            " peak_reserved_bytes bytes blocks share evidence fragmentation allocated_bytes"
            " released_bytes reserved_bytes known_share"
        ),
    ),
    Listing(
        "copies",
        ("rank kind src_kind dst_kind start_ns bytes gbps call waits count total_ns max_gbps"),
    ),
    Listing(
        "transfer",
        (
            "rank request instance kind connector ranks steps prefill_tokens decode_tokens"
            " busy_ns busy_share ratio start_ns ttft_ns queue_ns prefill_ns handover_ns transfer_ns"
            " wait_ns decode_ns delivery_ns dur_ns bytes count median_bytes predicted_ns"
            " predicted_low_ns predicted_high_ns gbps peak_share hidden_share total_ns median_ns"
            " evidence"
        ),
    ),
    Listing("hotspots", "rank own_share total_share own_value unit name"),
    Listing("totals", "kind share total_ns count mean_ns category name"),
    Listing("coverage", "rank kind share total_ns missing_count impossible_count denominator"),
    Listing(
        "roofline",
        "rank step phase stage bound_ns bound_by total_ns bound_share gap_ns reason",
        largest_first="gap_ns",
    ),
    Listing("events", "rank stream step phase layer stage start_ns dur_ns name", spare="stream"),
    Listing("event_waits", largest_first="dur_ns"),
)
"""The listings; an analysis without one shows all columns of its frame in their order."""


@cache
def listings() -> dict[str, Listing]:
    """Listings by the name of their analysis: those of llmprof, then those of plug-ins."""
    added = (one for _, one in plugins.records(plugins.LISTINGS, Listing))
    return {one.analysis: one for one in (*added, *LISTINGS)}
