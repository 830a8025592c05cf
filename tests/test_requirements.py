"""What the documents behind llmprof ask for, in their words, and what shows that it is there: a
command that is parsed, a call that is made, a file that exists, a page, or a test.

Features have their table in benchmarks/features.md (tests/test_features.py), the names of the
documents' own tools in benchmarks/coming_from.md.
"""

import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

import llmprof
from llmprof import analyze, theory
from llmprof.cli.main import parser
from llmprof.report import operators
from llmprof.run import batch, experiments
from llmprof.run.experiments import bandwidth, scaling
from llmprof.run.launch.config.options import PRESETS, SIZES
from llmprof.run.launch.run.folder import RunFolder
from tests.readers.test_ops import document, write
from tests.samples import sample
from tests.test_coming_from import rows, spans

ROOT = Path(__file__).parents[1]
PAGE = "benchmarks/coming_from.md"
PROFILED = "llmprof run --model random:tiny --profile-mode"
MADE = "tests/launch/test_run.py"

RUNNER = {
    "python scripts/run_single.py --model M": "llmprof run --model M",
    "--profile-mode inference_only": f"{PROFILED} inference_only",
    "--profile-mode nsys": f"{PROFILED} nsys",
    "--profile-mode nsys_ncu": f"{PROFILED} nsys_ncu",
    "--prompt": "llmprof run --model M --prompt Hello",
    "--max-tokens 500": "llmprof run --model M --max-tokens 500",
    "--temperature 0.7": "llmprof run --model M --temperature 0.7",
    "--batch-size 4": "llmprof run --model M --batch-size 4",
    "--tensor-parallel-size 2": "llmprof run --model M --tensor-parallel-size 2",
    "--tp, --pp": "llmprof run --model M --tp 2 --pp 2",
    "--experiment-name": "llmprof run --model M --experiment-name mine",
    "default prompt Hello, how are you?": "py PRESETS['classic']['prompt'] == 'Hello, how are you?'",
    "default 100 tokens": "py PRESETS['classic']['max_tokens'] == 100",
    "default temperature 0.7": "py PRESETS['classic']['temperature'] == 0.7",
    "default batch size 1": "py PRESETS['classic']['batch_size'] == 1",
    "default mode inference_only": "py PRESETS['classic']['profile_mode'] == 'inference_only'",
    "python scripts/run_batch.py --preset quick": "llmprof sweep --model M --preset quick",
    "quick: batch 1, 2 x tokens 50, 100": (
        "py batch.PRESETS['quick'] == {'batch_size': [1, 2], 'max_tokens': [50, 100]}"
    ),
    "comprehensive: also temperatures": "py batch.PRESETS['comprehensive']['temperature']",
    "scaling: parallel sizes": "py batch.PRESETS['scaling']['tensor_parallel_size']",
    "--base-prompt": "llmprof sweep --model M --base-prompt Hello --preset quick",
    '--parameter-sweep "batch_size:1,2,4;max_tokens:100,200"': (
        'llmprof sweep --model M --parameter-sweep "batch_size:1,2,4;max_tokens:100,200"'
    ),
    "ConfigManager.load_config('configs/default.yaml')": "py llmprof.ConfigManager.load_config",
    "llmprof writes a default configuration": "llmprof config --init",
    "ExperimentConfig(model_path=…, prompt=…, profile_mode='nsys')": (
        "py llmprof.ExperimentConfig(model_path='m', prompt='a', profile_mode='nsys')"
    ),
    "model_name": "py llmprof.ExperimentConfig(model='m', model_name='n').name",
    "ExperimentRunner(config).run()": "py llmprof.ExperimentRunner.run",
    "BatchRunner(config).run_parameter_sweep": "py llmprof.BatchRunner.run_parameter_sweep",
    "a sweep is a list of results": "tests/batch/test_sweep.py::test_every_combination_runs_once",
    "results/{model_name}_{profile_mode}_{timestamp}": (
        "py llmprof.ExperimentConfig(model='a/Q', profile_mode='nsys').name == 'Q_nsys'"
    ),
    **{
        f"{name} in the folder": f"py RunFolder(Path('.')).{place}.name == '{name}'"
        for place, name in {
            "log": "experiment.log",
            "summary": "summary.json",
            "gpu_info": "gpu_info.json",
            "output": "generated_output.txt",
            "metrics": "metrics.json",
            "nsys_metrics": "nsys_metrics.json",
            "nsys_summary": "nsys_summary.csv",
            "ncu_metrics": "ncu_metrics.json",
            "kernel_comparison": "kernel_comparison.csv",
        }.items()
    },
    "inference_script.py": "py RunFolder(Path('.')).script.stem == 'inference_script'",
    "vllm_profile.nsys-rep": f"{MADE}::test_nsys_records_exports_and_counts",
    "vllm_profile.sqlite": f"{MADE}::test_nsys_records_exports_and_counts",
    "metrics['summary']['top_kernels'], time_percentage": (
        f"{MADE}::test_nsys_records_exports_and_counts"
    ),
    "pd.read_csv('nsys_summary.csv')": f"{MADE}::test_nsys_records_exports_and_counts",
    "Visualizer(folder).create_all_visualizations()": (
        "py llmprof.Visualizer.create_all_visualizations"
    ),
    "viz.generate_report_html()": "py llmprof.Visualizer.generate_report_html",
    "{experiment}_kernel_time.png, _cuda_api.png, _dashboard.png, _report.html": (
        "tests/report/test_visualizer.py::test_a_run_without_a_trace_has_its_requests"
    ),
    "ncu_options: kernel_name": f"{PROFILED} ncu --ncu-option kernel_name=gemm",
    "which tensor_parallel_size?": "llmprof experiment parallelism --model M --layouts 1x1,2x1",
    "an analyzer of one's own": "docs/my_own.md: From a package of your own",
    "a picture of one's own": "CONTRIBUTING.md: Add a finding",
    "the experiment fails: out of memory": "docs/record.md: out of memory on the device",
}

TOOLCHAIN = {
    "torch.profiler around LLM(...) in one process": "docs/my_trace.md: VLLM_ENABLE_V1_MULTIPROCESSING=0",
    "the trace holds seven events": "tests/readers/test_read.py::test_a_profiler_around_an_engine",
    "llm.start_profile()": "docs/my_trace.md: llm.start_profile()",
    "export_chrome_trace": "docs/record.md: export_chrome_trace",
    "tensorboard_trace_handler": "docs/record.md: tensorboard_trace_handler",
    "an empty capture": "docs/record.md: an empty capture",
    "CUDA_LAUNCH_BLOCKING": "docs/record.md: CUDA_LAUNCH_BLOCKING=1",
    "out of memory while a trace is written": "docs/record.md: out of memory of the host",
    "ERR_NVGPUCTRPERM": "docs/record.md: ERR_NVGPUCTRPERM",
    "nsys profile -t cuda,nvtx": "docs/record.md: nsys profile -t cuda,nvtx",
    "nsys stats --report cuda_gpu_kern_sum": "py analyze.nsys.cuda_gpu_kern_sum(nsys)",
    "nsys stats --report cuda_api_sum": "py analyze.nsys.cuda_api_sum(nsys)",
    "ncu --set full": "docs/record.md: ncu --set full",
    "ncu: speed of light": "py analyze.ncu.speed_of_light(ncu)",
    "ncu: stalls": "py analyze.ncu.stalls(ncu)",
    "perf record -g": "docs/record.md: perf record",
    "vtune -collect hotspots": "docs/record.md: vtune -collect hotspots",
    "nvidia-smi dmon, gpustat, dstat, sar": "docs/record.md: dstat",
    "memory timeline, snapshot": "docs/record.md: _record_memory_history",
    "TensorRT: trtexec --dumpProfile": "docs/record.md: trtexec",
    "rocprofv3": "docs/record.md: rocprofv3",
    "environment.yml": "py (ROOT / 'environment.yml').is_file()",
    "torch and vllm in the environment": "tests/test_project.py::test_environment_yml_asks_for",
}

THEORY = {
    **{
        f"result has {key}": f"py profiled['{key}'] is not None"
        for key in (
            *("model_params", "prefill_flops", "decode_flops_per_step", "params_model"),
            *("prefill_first_token_latency", "decode_per_token_latency", "kv_cache_latency"),
            *("total_infer_latency", "prefill flops_model", "weight_memory_per_gpu"),
            *("prefill_max_bs", "prefill_act_memory_per_gpu", "decode_act_memory_per_gpu"),
            *("kv_cache_memory_per_gpu", "decode_memory_total", "decode_max_bs"),
            *("max_batch_total_tokens", "prefill_latency", "decode_latency", "decode_qkvo_proj"),
            *("prefill_qkvo_proj", "prefill_attn_kernel", "prefill_mlp", "prefill_rmsnorm"),
            *("prefill_tp_comm", "prefill_kv_cache_rw", "decode_attn_kernel", "decode_mlp"),
            *("decode_rmsnorm", "decode_tp_comm", "decode_kv_cache_rw"),
        )
    },
    "params of qkvo_proj, mlp, rmsnorm, the embeddings": (
        "py {'qkvo_proj', 'mlp', 'rmsnorm', 'input_embedding', 'output_embedding'}"
        " <= set(profiled['params_per_layer'])"
    ),
    "flops of attention_kernel, positional_embedding": (
        "py {'attention_kernel', 'qkvo_proj', 'mlp', 'rmsnorm', 'positional_embedding',"
        " 'input_embedding'} <= set(profiled['prefill_flops_per_layer'])"
    ),
    "inference_config": "py profiled['inference_config']['bs'] == 20",
    "gpu_config: 40 GB, 1555 GB/s, 600 GB/s, 312 TFLOPS": (
        "py set(profiled['gpu_config'].values()) >= {'40 GB', '1555 GB/s', '600 GB/s', '312 TFLOPS'}"
    ),
    "prefill_latency 1.77 s with efficiencies of 0.9": "py abs(profiled['TTFT'] / 1.77 - 1) < 0.01",
    "the printed sections": "tests/theory/test_familiar.py::test_the_familiar_sections",
    "arguments by position": "tests/theory/test_familiar.py::test_arguments_by_position",
    "T4, V100, A100": "py [theory.profile('llama2-7b', n) for n in ('T4', 'V100-SXM-32GB', 'A100')]",
    "structure graph, shares, curves": "llmprof theory Qwen3-8B --gpu H200 --charts DIR",
    "training": "llmprof theory Qwen3-8B --gpu H200 --mode training --dp 8 --zero 2",
    **{
        f"{concept} is explained": f"docs/predict.md: {concept}"
        for concept in (
            *("FlashAttention", "PagedAttention", "sliding window", "Pruning", "distillation"),
            *("DeepSpeed", "quantization", "CUDA graphs"),
        )
    },
}

TIMER = {
    "--tp 2 --pp 1 --num-tokens 100 --profile-steps 5": (
        f"{PROFILED} ops --tp 2 --pp 1 --num-tokens 100 --profile-steps 5"
    ),
    "--profile-steps 3 --num-tokens 20 --warmup-steps 1": "py SIZES['quick']['max_tokens'] == 20",
    "--profile-steps 10 --num-tokens 100 --warmup-steps 3": "py SIZES['detailed']['steps'] == 10",
    "--profile-steps 20 --num-tokens 200 --warmup-steps 5": (
        "py (SIZES['production']['warmup'], SIZES['production']['max_tokens']) == (5, 200)"
    ),
    "--max-seq-len": f"{PROFILED} ops --max-seq-len 4096",
    **{
        f"{name}.png": f"py callable(operators.CHARTS['{name}'])"
        for name in (
            *("layer_performance_heatmap", "operation_time_distribution", "memory_usage_analysis"),
            *("compute_vs_communication", "performance_bottlenecks", "bandwidth_analysis"),
        )
    },
    **dict.fromkeys(
        (
            *("detailed_timings.csv", "analysis_report.json", "comm_analysis.json"),
            *("comprehensive_report.json", "ops/README.md"),
        ),
        "tests/report/test_operators.py::test_all_files_and_what_is_in_them",
    ),
    "layer_breakdown['model.layers.0.mlp']['total_time']": "py layers['total_time'] == 25e-6",
    "['avg_time'], ['count'], ['operations']": "py {'avg_time', 'count', 'operations'} <= set(layers)",
    "communication_analysis['total_comm_time']": "py messages['total_comm_time'] == 2e-6",
    "['comm_percentage']": "py 3 < messages['comm_percentage'] < 4",
    "['by_operation_type']['all_reduce']['count']": (
        "py messages['by_operation_type']['all_reduce']['count'] == 1"
    ),
    "['avg_bandwidth_gbps']": (
        "py messages['by_operation_type']['all_reduce']['avg_bandwidth_gbps'] == 1.0"
    ),
    "bandwidth_analysis.png shows GB/s": "py 'GB/s' in json.dumps(bandwidth_chart)",
    "memory_before, memory_after on a GPU": "py SIZES['detailed']['memory'] == 'operators'",
    "an operation of one's own": "py llmprof.ops.time",
    "a metric of one's own": f'{PROFILED} ops --ops-option \'metrics={{"a": "b:c"}}\'',
    "the framework's own test": "llmprof doctor --self-test",
}

SCALING = {
    "gpu_bandwidth_test.py: P2P from 1 MB to 2 GB": "llmprof experiment bandwidth",
    "all-reduce, also NCCL under graphs": "tests/experiments/test_experiments.py::test_nccl_is_timed",
    "memory bandwidth of one GPU": "py 'memory' in bandwidth.SPEC['parts']",
    "topology of NVLink": "py 'topology' in bandwidth.SPEC['parts']",
    "bandwidth_test_*.json": "py experiments.saved(llmprof.notebook_data('h200')).bandwidth",
    "latency_analysis_*.json": "py experiments.saved(llmprof.notebook_data('h200')).points.height",
    "latency_vs_sequence_length.py": "llmprof experiment sequence_length --model M",
    "lengths 128 to 8192": "py scaling.LENGTHS == (128, 256, 512, 1024, 2048, 4096, 8192)",
    "batches 1, 2, 4, 8": "py scaling.BATCHES == (1, 2, 4, 8)",
    "outputs 50, 100, 200": "py scaling.OUTPUTS == (50, 100, 200)",
    "parallelism_overhead.py --test-all": (
        "llmprof experiment parallelism --model M --layouts 1x1,2x1,1x2"
    ),
    "speed-up, efficiency, memory": "tests/experiments/test_experiments.py::TestPoints",
    "TP above 75 %, 50 %": "py scaling.GRADES['tp_efficiency'] == (0.75, 0.5)",
    "PP above 60 %, 40 %": "py scaling.GRADES['pp_efficiency'] == (0.6, 0.4)",
    "P2P above 200, 100 GB/s": "py scaling.GRADES['p2p_gb_per_s'] == (200.0, 100.0)",
    "NVLink above 50 %, 30 %": "py scaling.GRADES['link_share'] == (0.5, 0.3)",
    "test cases of one's own": "llmprof experiment parallelism --model M --cases FILE",
    "performance_report.md begins with a judgement": "tests/experiments/test_experiments.py::TestReport",
    "visualize_results.py --results-dir": "llmprof experiment report --results-dir DIR",
    "torchrun over nodes": "llmprof experiment bandwidth --nodes 2",
    "every hour": "llmprof experiment watch --of bandwidth --runs 24 --every 3600",
    "optimisation advice": "py experiments.suggestions(experiments.Evidence()).columns",
}

ITEMS = [
    (name, item, shown)
    for name, table in {
        "runner": RUNNER,
        "toolchain": TOOLCHAIN,
        "theory": THEORY,
        "timer": TIMER,
        "scaling": SCALING,
    }.items()
    for item, shown in table.items()
]
OWN = (
    "A runner of vLLM under Nsight",
    "llm_profiler",
    "A timer of operators",
    "Scripts of bandwidth, length and parallelism",
)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Names that calls may use."""
    timings = operators.read_run(write(tmp_path_factory.mktemp("ops"), document()))
    used = {
        "llmprof": llmprof,
        "analyze": analyze,
        "theory": theory,
        "operators": operators,
        "batch": batch,
        "experiments": experiments,
        "bandwidth": bandwidth,
        "scaling": scaling,
        "PRESETS": PRESETS,
        "SIZES": SIZES,
        "RunFolder": RunFolder,
        "Path": Path,
        "ROOT": ROOT,
        "json": json,
    }
    return used | {
        "nsys": sample("nsys_tp1_layer_nvtx"),
        "trace": sample("nsys_tp1_layer_nvtx"),
        "ncu": llmprof.sample_metrics("ncu_tp1_eager"),
        "metrics": llmprof.sample_metrics("ncu_tp1_eager"),
        "profiled": theory.llm_profile(
            "llama2-70b",
            "a100-sxm-40gb",
            bs=20,
            seq_len=1024,
            generate_len=1024,
            tp_size=8,
            print_flag=False,
        ),
        "layers": operators.layer_report(timings)["layer_breakdown"]["model.layers.0.mlp"],
        "messages": operators.communication_report(timings)["communication_analysis"],
        "bandwidth_chart": operators.bandwidth_analysis(timings).to_dict(),
    }


@cache
def text(name):
    return (ROOT / name).read_text("utf-8")


def shows(shown, known):
    """Whether a command, a call, a page or a test shows an item."""
    if shown.startswith("llmprof "):
        parser().parse_args(shlex.split(shown)[1:])
        return True
    if shown.startswith("py "):
        found = eval(shown.removeprefix("py "), known)
        return found is not None and found is not False
    if "::" in shown:
        file, _, test = shown.partition("::")
        return f"def {test}" in text(file) or f"class {test}" in text(file)
    page, _, words = shown.partition(": ")
    return words in text(page)


@pytest.mark.parametrize(("name", "item", "shown"), ITEMS, ids=[f"{n}: {i}" for n, i, _ in ITEMS])
def test_an_item_is_there(known, name, item, shown):
    assert shows(shown, known)


@pytest.mark.parametrize("tool", OWN)
def test_the_documents_own_names_lead_to_something(root, known, tool):
    there = {span for _, here in rows(root, PAGE)[tool] for span in spans(here)}
    commands = [span for span in there if span.startswith("llmprof ")]
    calls = [span for span in there if re.match(r"(?:analyze|theory|llmprof)\.\w", span)]
    assert commands
    for command in commands:
        parser().parse_args(shlex.split(command)[1:])
    for call in calls:
        assert eval(call, known) is not None


def test_keys_that_are_kept_have_their_unit(root, known):
    """Each key of the section is in a result, and has a unit."""
    section = (root / PAGE).read_text("utf-8")
    section = section.partition("## Keys that are kept for other tools\n")[2].partition("\n## ")[0]
    table = [
        line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")
    ]
    assert all(len(row) == 3 and row[1] for row in table)
    results = json.dumps([known["profiled"], known["layers"], known["messages"], "time_percentage"])
    missing = [key for row in table for key in spans(row[0]) if f'"{key}"' not in results]
    assert not missing
