"""The timer of operators, on modules that stand in for those of torch and a clock that is set by
hand.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

import llmprof
from llmprof.analyze.operator_times import timed_calls, timed_steps, timing_overhead
from llmprof.errors import TraceWarning
from llmprof.run.operator_timing import communication_times, timers
from llmprof.run.workers import device_clock, ops_timer, vllm_ops
from llmprof.run.workers.ops_timer import OpsTimer, result_of


class Tensor:
    """What the timer asks of a tensor."""

    dtype = "torch.bfloat16"

    def __init__(self, *shape):
        self.shape = shape

    def numel(self):
        count = 1
        for one in self.shape:
            count *= one
        return count

    def element_size(self):
        return 2


class Module:
    """A module: children by name, and a forward that calls them."""

    def __init__(self, clock, cost=0, **children):
        self.clock, self.cost, self.children_ = clock, cost, children
        self.ran = 0

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def forward(self, *args, **kwargs):
        self.ran += 1
        self.clock.now += self.cost
        for child in self.children_.values():
            child(*args, **kwargs)
        return args[0]

    def named_children(self):
        return self.children_.items()

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.children_.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self):
        return [one for _, one in self.named_modules()]

    def parameters(self):
        return [Tensor(one.cost) for one in self.modules()]


class ModuleList(Module):
    """A list of modules, which has no forward."""

    def forward(self, *args, **kwargs):
        for child in self.children_.values():
            child(*args, **kwargs)


class Clock:
    """A host clock that moves only where a module says so."""

    now = 1_000_000

    def perf_counter_ns(self):
        return self.now

    def time_ns(self):
        return self.now + 5_000_000_000


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (ops_timer, device_clock):
        monkeypatch.setattr(module, "time", made)
    return made


class Event:
    """An event of a device that is never behind the host."""

    clock: Clock

    def __init__(self, *, enable_timing):
        assert enable_timing
        self.at = 0

    def record(self, _stream=None):
        self.at = self.clock.now

    def synchronize(self):
        """It has been reached."""

    def elapsed_time(self, other):
        return (other.at - self.at) / 1e6


@pytest.fixture
def device(clock, monkeypatch):
    """PyTorch on a device whose allocator holds a megabyte more at every reading."""
    monkeypatch.setattr(Event, "clock", clock, raising=False)
    held = iter(range(1 << 20, 1 << 40, 1 << 20))

    def launch():
        clock.now += 800

    cuda = SimpleNamespace(
        Event=type("Timed", (Event,), {}),
        current_stream=lambda: "stream",
        synchronize=lambda: None,
        current_device=lambda: 0,
        get_device_name=lambda: "stand-in",
    )
    memory = SimpleNamespace(
        _cuda_memoryStats=lambda _: {"allocated_bytes": {"all": {"current": next(held)}}}
    )
    zeros = lambda *_, **__: SimpleNamespace(zero_=launch, add_=lambda _: None)  # noqa: E731
    return SimpleNamespace(__version__="2.13.0", cuda=cuda, _C=memory, zeros=zeros)


def model(clock, layers=3):
    """An embedding of 7 us, layers of 1 + 10 (attention: 2 + 8) + 20 us, a norm of 3 us."""

    def layer():
        return Module(
            clock,
            1_000,
            self_attn=Module(clock, 2_000, qkv=Module(clock, 8_000)),
            mlp=Module(clock, 20_000),
        )

    stack = ModuleList(clock, **{str(i): layer() for i in range(layers)})
    inner = Module(clock, 0, embed=Module(clock, 7_000), layers=stack, norm=Module(clock, 3_000))
    return Module(clock, 0, model=inner)


TORCH = SimpleNamespace(__version__="2.13.0")


def run(timer, root, phases):
    for phase in phases:
        timer.begin_step(f"execute_{phase}", phase)
        if not timer.done or timer.timing:
            root(Tensor(4, 16))
        timer.end_step()
    return result_of(timer) | {"world_size": 1}


def frames(result):
    """The trace of a result, as its reader makes it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ops_rank0.json"
        file.write_text(json.dumps(result))
        with warnings.catch_warnings(action="ignore", category=TraceWarning):
            return llmprof.read(file)


def test_times_of_layers_and_operators_are_those_of_the_clock(clock):
    """Every layer takes 31 us; of the sampled one the operators are known, and each step samples
    the next one.
    """
    root = model(clock)
    timer = OpsTimer(TORCH, root, {"operator_layers": 1, "memory": "off"}, cuda=False)
    timings = frames(run(timer, root, ["prefill", "decode", "decode"]))
    layers = timed_calls(timings).filter(kind="layer")
    assert layers["dur_ns"].to_list() == [31_000] * 9
    assert layers["layer"].to_list() == [0, 1, 2] * 3
    assert layers.filter("nested").select("step", "layer").rows() == [(0, 0), (1, 1), (2, 2)]
    inside = (
        timed_calls(timings)
        .filter(layer=2, kind="module")
        .select("operator", "dur_ns", "nested")
        .rows()
    )
    assert inside == [
        ("self_attn", 10_000, True),
        ("self_attn.qkv", 8_000, False),
        ("mlp", 20_000, False),
    ]
    outside = timed_calls(timings).filter(pl.col("layer").is_null(), step=0)
    # 7 + 3 * 31 + 3 us
    assert dict(outside.select("operator", "dur_ns").rows()) == {
        "model.embed": 7_000,
        "model.norm": 3_000,
        "Module": 103_000,
    }
    assert timed_steps(timings)["phase"].to_list() == ["prefill", "decode", "decode"]
    assert json.loads(layers["shapes"][0]) == [[4, 16]]


def test_layers_share_a_border_unless_the_host_took_long_between_them(clock, device):
    """Between two layers 7 us pass, of which the next layer's own launch is part; 26 us are
    something else's.
    """
    for pause, begins in ((7_000, [0, 31_000]), (26_000, [0, 57_000])):
        root = model(clock, layers=2)
        stack = root.children_["model"].children_["layers"]

        def slow(*args, stack=stack, pause=pause):
            for child in stack.children_.values():
                child(*args)
                clock.now += pause
            return args[0]

        stack.forward = slow
        timer = OpsTimer(device, root, {"operator_layers": -1, "memory": "off"}, cuda=True)
        timer.prepare()
        timer.begin_step("execute_decode", "decode")
        root(Tensor(1))
        rows = timed_calls(frames(result_of(timer) | {"world_size": 1})).filter(kind="layer")
        assert (rows["start_ns"] - rows["start_ns"][0]).to_list() == begins
        assert rows["dur_ns"].to_list() == [31_000, 31_000 + (pause if pause < 25_000 else 0)]


def test_layers_are_timed_in_turn(clock, device):
    """Two of five a step, with the operators of the first of them; what lies in the others is
    not timed.
    """
    root = model(clock, layers=5)
    timer = OpsTimer(device, root, {"layers": 2, "operator_layers": 1, "memory": "off"}, cuda=True)
    timer.prepare()
    call = timer.communicate("all_reduce", "tp", 2, lambda data: data)
    for layer in root.children_["model"].children_["layers"].children_.values():
        layer.children_["mlp"].children_["reduce"] = Module(clock)
        layer.children_["mlp"].children_["reduce"].forward = call
    timings = frames(run(timer, root, ["decode"] * 5) | {"world_size": 2})
    calls = timed_calls(timings)
    layers = calls.filter(kind="layer").select("step", "layer", "nested").rows()
    assert layers == [
        (step, layer, layer == step)
        for step in range(5)
        for layer in sorted((step, (step + 1) % 5))
    ]
    assert set(calls.filter(operator="mlp").select("step", "layer").rows()) == {
        (step, step) for step in range(5)
    }
    assert calls.filter(kind="layer")["dur_ns"].unique().to_list() == [31_000]
    assert timings.collectives.select("timer_step", "timer_layer").rows() == [
        (step, step) for step in range(5)
    ]
    assert timers(timings)[0]["collectives_seen"] == {"all_reduce": 25}


def test_the_allocator_is_asked_at_a_new_shape_and_then_every_tenth_step(clock, device):
    root = model(clock, layers=1)
    timer = OpsTimer(device, root, {"operator_layers": -1}, cuda=True)
    timer.prepare()
    result = run(timer, root, ["prefill", *["decode"] * 13])
    known = [
        step for step, before in enumerate(result["steps"]["bytes_before"]) if before is not None
    ]
    assert known == [0, 1, 11]
    assert [after is not None for after in result["steps"]["bytes_after"]] == [
        step in known for step in range(14)
    ]


def test_single_steps_of_a_cycle_come_in_random_order(clock):
    """Each turn has every method once; the orders differ, and are the same in every run and on
    every rank.
    """

    def methods():
        timer = OpsTimer(
            TORCH, model(clock, layers=1), {"cycle": [["none", 1], ["events", 1]]}, cuda=False
        )
        return run(timer, timer.root, ["decode"] * 40)["entries"]["method"]

    made = methods()
    turns = [tuple(made[i : i + 2]) for i in range(0, 40, 2)]
    assert {frozenset(turn) for turn in turns} == {frozenset(("none", "events"))}
    assert len(set(turns)) == 2
    assert methods() == made


def test_what_is_not_sampled_runs_as_it_was(clock):
    root = model(clock)
    before = [dict(one.__dict__) for one in root.modules()]
    timer = OpsTimer(TORCH, root, {"every": 2, "steps": 2, "memory": "off"}, cuda=False)
    result = run(timer, root, ["prefill", "decode", "decode", "decode", "decode"])
    assert [one.__dict__.keys() for one in root.modules()] == [one.keys() for one in before]
    assert result["steps"]["step"] == [0, 2]
    assert result["entries"]["method"] == ["events", "none", "events", "none", "none"]
    assert ops_timer.ACTIVE == []
    timer = OpsTimer(TORCH, root, {}, cuda=False)
    timer.begin_step("execute", "decode")
    with pytest.raises(IndexError):
        root()
    timer.end_step()
    assert all("forward" not in one.__dict__ for one in root.modules())
    assert root(Tensor(1)).numel() == 1


def test_a_model_without_layers_is_timed_by_depth_and_says_so(clock):
    root = Module(
        clock, 0, encoder=Module(clock, 5_000), head=Module(clock, 2_000, deep=Module(clock, 1_000))
    )
    timer = OpsTimer(TORCH, root, {"depth": 1, "memory": "off"}, cuda=False)
    result = run(timer, root, ["decode"])
    assert "has no stack of layers" in result["notes"][0]
    calls = timed_calls(frames(result)).filter(kind="module")
    assert dict(calls.select("operator", "dur_ns").rows()) == {"encoder": 5_000, "head": 3_000}


def test_collectives_have_bytes_and_bandwidth(clock):
    """256 bf16 values in 2 us are 512 B: 0.256 GB/s, and over two ranks the bus carries as much."""
    root = model(clock)
    timer = OpsTimer(TORCH, root, {"memory": "off"}, cuda=False)

    def all_reduce(data):
        clock.now += 2_000
        return data

    call = timer.communicate("all_reduce", "tp", 2, all_reduce)
    call(Tensor(256))
    timer.begin_step("execute", "decode")
    call(Tensor(256))
    timer.detail = False
    call(Tensor(256))
    timings = frames(result_of(timer) | {"world_size": 2})
    row = timings.collectives.row(0, named=True)
    assert timings.collectives.height == 1
    assert (row["bytes"], row["dur_ns"], row["kind"], row["world"]) == (512, 2_000, "all_reduce", 2)
    row = communication_times(timings).row(0, named=True)
    assert row["algorithm_gbps"] == pytest.approx(0.256)
    assert row["bus_gbps"] == pytest.approx(0.256)
    assert timers(timings)[0]["collectives_seen"] == {"all_reduce": 2}


def test_a_cycle_of_methods_and_what_each_costs(clock):
    """Steps of 10 ms, of 11 where they are timed: 10 %, from the steps that follow one of their
    own method.
    """
    root = model(clock, layers=1)
    timer = OpsTimer(
        TORCH, root, {"cycle": [["none", 3], ["events", 3]], "memory": "off"}, cuda=False
    )
    for _ in range(24):
        timer.begin_step("execute", "decode")
        clock.now += 11_000_000 if timer.timing else 10_000_000
    timer.end_step()
    shown = timing_overhead(frames(result_of(timer) | {"world_size": 1}))
    # four blocks of three, each without its first
    assert shown.select("method", "steps", "median_ns").rows() == [
        ("none", 8, 10_000_000),
        ("events", 7, 11_000_000),
    ]
    assert shown["overhead"].to_list() == [None, pytest.approx(0.1)]
    assert shown.select("overhead_low", "overhead_high").row(1) == pytest.approx((0.1, 0.1))
    # Steps grow by 0.1 ms each; a timed one takes 5 % more than the mean of its neighbours on both
    # sides.
    timer = OpsTimer(TORCH, root, {"every": 2, "steps": 50, "memory": "off"}, cuda=False)
    for step in range(101):
        timer.begin_step("execute_decode", "decode")
        clock.now += int((10_000_000 + 100_000 * step) * (1.05 if timer.timing else 1))
    timer.end_step()
    row = timing_overhead(frames(result_of(timer) | {"world_size": 1})).row(1, named=True)
    assert (row["method"], row["steps"]) == ("events", 50)
    assert row["overhead"] == pytest.approx(0.05, abs=1e-3)
    assert row["overhead_low"] <= row["overhead"] <= row["overhead_high"]


def scale(name, args, out):
    return float(out.numel())


def test_operations_and_metrics_of_the_users_own(clock, monkeypatch):
    from llmprof import ops

    root = model(clock, layers=1)
    monkeypatch.setitem(globals(), "helper", lambda data: data)
    where = f"{__name__}:helper"
    options = {
        "functions": {"mine": where},
        "metrics": {"elements": f"{__name__}:scale"},
        "memory": "off",
    }
    timer = OpsTimer(TORCH, root, options, cuda=False)
    with ops.time("nothing is timed"):
        pass
    timer.begin_step("execute", "decode")
    monkeypatch.setattr(ops, "_timers", lambda: ops_timer.ACTIVE)
    with ops.time("block"):
        clock.now += 4_000
    importlib.import_module(__name__).helper(Tensor(3))
    root(Tensor(5))
    calls = timed_calls(frames(result_of(timer) | {"world_size": 1}))
    assert dict(calls.filter(kind="user").select("operator", "dur_ns").rows()) == {
        "block": 4_000,
        "mine": 0,
    }
    assert json.loads(calls.filter(operator="mlp")["values"][0]) == {"elements": 5.0}
    assert helper(1) == 1  # noqa: F821 (set above)


def test_the_label_and_phase_of_a_step():
    cached = SimpleNamespace(is_context_phase=lambda request: request == "c")
    scheduled = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="a")],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={"a": 8, "b": 1, "c": 4},
    )
    assert vllm_ops.scheduled_step(scheduled) == ("execute_context_2(12)_generation_1(1)", "mixed")
    scheduled.num_scheduled_tokens = {"b": 1}
    assert vllm_ops.scheduled_step(scheduled)[1] == "decode"
    scheduled.num_scheduled_tokens = {"a": 8}
    assert vllm_ops.scheduled_step(scheduled)[1] == "prefill"


@pytest.mark.parametrize(
    ("compilation", "cuda", "words"),
    [
        (
            {"cudagraph_mode": SimpleNamespace(name="FULL_AND_PIECEWISE"), "mode": 0},
            True,
            "under CUDA graphs",
        ),
        ({"cudagraph_mode": SimpleNamespace(name="NONE"), "mode": 3}, True, "compiled code"),
        ({"cudagraph_mode": SimpleNamespace(name="FULL"), "mode": 0}, False, None),
    ],
)
def test_graphs_and_compiled_code_are_refused(compilation, cuda, words, monkeypatch):
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    config = SimpleNamespace(compilation_config=SimpleNamespace(**compilation))
    if words is None:
        vllm_ops.check_eager(config, cuda=cuda)
        return
    with pytest.raises(RuntimeError, match=words):
        vllm_ops.check_eager(config, cuda=cuda)
