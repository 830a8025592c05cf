"""Secrets planted in every text of the files of readers of sums, samples and printed tables."""

import json
import re
import warnings

import pytest

import llmprof
from llmprof.errors import TraceWarning
from llmprof.readers.redaction import redact
from tests.fuzz import late
from tests.redaction.test_planted import KINDS, content_of

READERS = ("nvprof", "vtune", "tensorrt", "proton", "rocprofv3", "ops")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    late.make(folder)
    return folder


def planted(value, secret):
    """A document whose texts of people (not those that name what it is) carry a secret."""
    if isinstance(value, dict):
        known = {
            "format",
            "phase",
            "kind",
            "clock",
            "platform",
            "method",
            "layer_path",
            "type",
            "dtype",
        }
        made = {key: one if key in known else planted(one, secret) for key, one in value.items()}
        return made | {"more": secret}
    if isinstance(value, list):
        return [planted(one, secret) for one in value]
    return f"{value} {secret}" if isinstance(value, str) and not value.isdecimal() else value


def files_of(folder, secret, work):
    """The seeds with a secret in every document's text, or in a name of every row and in a line
    of its own.
    """
    for seed in sorted(folder.iterdir()):
        path = work / seed.name
        text = seed.read_text()
        try:
            document = json.loads(text)
        except ValueError:
            quoted = secret.replace('"', '""').replace(",", ";")
            name = r"(kernel_|gemm_|cudaLaunchKernel|function_|frame_|MEMORY_COPY_HOST)(\w*)"
            text = re.sub(name, rf"\g<0> {quoted.replace(chr(92), chr(92) * 2)}", text)
            path.write_text(
                f"{text}== the program said {secret}\n" if seed.parent.name == "nvprof" else text
            )
        else:
            made = planted(document, secret)
            if seed.parent.name == "tensorrt":
                made = [
                    {k: v for k, v in one.items() if i or k != "more"} for i, one in enumerate(made)
                ]
            path.write_text(json.dumps(made, ensure_ascii=False))
        yield path


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_secret_planted_in_every_text(reader, seeds, tmp_path):
    """It is in no copy, and the copy has as many rows as the file."""
    left = {}
    for kind, (secret, parts) in KINDS.items():
        for number, path in enumerate(files_of(seeds / reader, secret, tmp_path)):
            copy = tmp_path / f"copy_{number}_{kind.replace(' ', '_')}"
            with warnings.catch_warnings(action="ignore", category=TraceWarning):
                before = llmprof.read(path, cache=False)
                redact(path, copy)
                after = llmprof.read(copy, cache=False)
            assert {name: frame.height for name, frame in before.tables.items()} == {
                name: frame.height for name, frame in after.tables.items()
            }
            content = content_of(copy)
            if there := [
                part for part in parts if part in content or json.dumps(part)[1:-1] in content
            ]:
                left[kind, path.name] = there
    assert left == {}
