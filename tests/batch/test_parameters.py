import pytest

from llmprof.cli.main import main
from llmprof.errors import ConfigError
from llmprof.run import batch
from llmprof.run.batch import parameters
from tests.batch.runners import config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "batch_size:1,2,4;max_tokens:100,200",
            {"batch_size": [1, 2, 4], "max_tokens": [100, 200]},
        ),
        (" batch-size : 1 ; ", {"batch_size": [1]}),
        ("temperature:0,0.5", {"temperature": [0, 0.5]}),
        ("eager:true,false", {"eager": [True, False]}),
        ("eager:True,None", {"eager": [True, None]}),
        ("all_reduce:nccl,custom", {"all_reduce": ["nccl", "custom"]}),
        ("input_tokens:64,[32, 128]", {"input_tokens": [64, [32, 128]]}),
        ('prompt:"a, b","c;d"', None),
        ('prompt:"a, b"', {"prompt": ["a, b"]}),
        ("model:/models/a,/models/b", {"model": ["/models/a", "/models/b"]}),
        ("engine_args.block_size:16,32", {"engine_args.block_size": [16, 32]}),
    ],
    ids=[
        "two",
        "dashes",
        "floats",
        "json",
        "python",
        "text",
        "lists",
        "semicolon-in-text",
        "comma-in-text",
        "paths",
        "one-key",
    ],
)
def test_text(text, expected):
    if expected is None:
        with pytest.raises(ConfigError):
            batch.parse(text)
    else:
        assert batch.parse(text) == expected


def test_too_many_points_are_counted_not_made(tmp_path, capsys):
    values = {name: range(1, 1001) for name in ("batch_size", "max_tokens", "input_tokens")}
    for ask in (parameters.points, lambda grid: batch.configs(config(tmp_path), grid)):
        with pytest.raises(ConfigError, match="1,000,000,000"):
            ask(values)
    text = ";".join(f"{name}:{','.join(map(str, numbers))}" for name, numbers in values.items())
    assert main(["sweep", "--model", "m", "--parameter-sweep", text, "--dry-run"]) == 2
    assert "1,000,000,000" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="one of quick, comprehensive, scaling"):
        batch.preset("fast")


@pytest.mark.parametrize("text", ["", ";", "batch_size", "batch_size:", ":1", "a:1;a:2"])
def test_text_that_says_nothing(text):
    with pytest.raises(ConfigError, match=r"no values|no parameter|comes twice"):
        batch.parse(text)


@pytest.mark.parametrize("name", batch.PRESETS)
def test_presets_are_sweeps_that_can_run(name, tmp_path):
    found = batch.configs(config(tmp_path), batch.preset(name))
    assert len(found) == {"quick": 4, "comprehensive": 48, "scaling": 2}[name]


@pytest.mark.parametrize(("visible", "expected"), [("", 0), ("0,1,3", 3), ("-1", 0), ("GPU-x", 1)])
def test_devices_that_are_visible(monkeypatch, visible, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert batch.device_count() == expected
