"""Arguments of recorded calls, computed by hand, and recordings that mean harm."""

import json

import pytest

from llmprof.analyze.operator_arguments import RecordedTensor, recorded_call
from llmprof.errors import AnalysisError

_BF16 = "c10::BFloat16"


def _call(name, shapes, types, strides=None, inputs=None, **more):
    texts = [None if one is None else json.dumps(one) for one in (shapes, types, strides, inputs)]
    return recorded_call(name, *texts, **more)


def test_tensors_and_numbers():
    call = _call(
        "_C::rms_norm",
        [[4, 8], [4, 8], [8], []],
        [_BF16, _BF16, _BF16, "Scalar"],
        [[8, 1], [16, 1], [1], []],
        ["", "", "", "9.9999999999999995e-07"],
    )
    out, given, weight, epsilon = call.arguments
    assert out == RecordedTensor((4, 8), (8, 1), "bfloat16")
    # three steps of 16 and seven of 1 from the first to the last element
    assert (given.elements, given.bytes) == (56, 112)
    assert (weight.elements, epsilon, call.assumed) == (8, 1e-6, ())


def test_scalars_that_were_recorded_as_tensors():
    assert _call("aten::mul", [[4, 1], []], ["float", "double"]).arguments[1] == 0.5
    assert _call(
        "aten::add", [[4], [], []], ["long int", "long int", "Scalar"], None, ["", "", "1"]
    ).arguments[1:] == (
        1,
        1,
    )


def test_lists_of_tensors():
    call = _call(
        "aten::cat",
        [[[4, 2], [4, 6]], []],
        ["TensorList", "Scalar"],
        [[[2, 1], [6, 1]], []],
        ["", "-1"],
        usual_dtype="float16",
    )
    assert call.arguments == (
        (RecordedTensor((4, 2), (2, 1), "float16"), RecordedTensor((4, 6), (6, 1), "float16")),
        -1,
    )
    assert call.assumed == ("types in a list of tensors are not recorded: taken to be float16",)


def test_indices_stay_in_their_tables():
    assert _call("aten::embedding", [[100, 8], [3]], [_BF16, "long int"]).arguments[1].holds == (
        "below",
        100,
    )
    shapes, types = [[100, 8], [], [3]], [_BF16, "Scalar", "long int"]
    assert _call("aten::index_select", shapes, types, None, ["", "1", ""]).arguments[2].holds == (
        "below",
        8,
    )
    align = _call(
        "_moe_C::moe_align_block_size",
        [[64, 8], [], [], [2432], [152], [1], []],
        ["int", "Scalar", "Scalar", "int", "int", "int", ""],
        None,
        ["", "128", "16", "", "", "", ""],
    )
    assert align.arguments[0].holds == ("below", 128)


def test_attention_over_pages():
    query, cache = ([193, 12, 128], _BF16), ([1000, 16, 2, 128], _BF16)
    plans = {7: ([5], "int"), 11: ([4], "int"), 14: ([4, 256], "int"), 29: ([9], "int")}
    tensors = {0: query, 1: cache, 2: cache, 6: query, **plans}
    numbers = {
        12: "64",
        13: "65",
        23: "0.088",
        24: "True",
        25: "-1",
        26: "-1",
        27: "0.",
        28: "True",
        30: "0",
        32: "0",
        34: "1",
        35: "0",
    }
    shapes = [tensors[i][0] if i in tensors else [] for i in range(37)]
    types = [tensors[i][1] if i in tensors else "Scalar" if i in numbers else "" for i in range(37)]
    call = _call("_vllm_fa3_C::fwd", shapes, types, None, [numbers.get(i, "") for i in range(37)])
    held = {
        place: one.holds
        for place, one in enumerate(call.arguments)
        if isinstance(one, RecordedTensor)
    }
    assert held[7] == ("ends", 193, 64)  # three of 64 and one of 1
    assert held[11] == ("filled", 65)
    assert held[14] == ("pages", 1000)
    assert held[29] == ("fa3_metadata",)
    assert call.arguments[3] is None


@pytest.mark.parametrize(
    ("shapes", "types", "strides", "words"),
    [
        ("[[4, 8], [8, 2]]", None, None, "shapes were not recorded"),
        (None, '["float", "float"]', None, "shapes were not recorded"),
        ("[[4, 8]", '["float", "float"]', None, "shapes were not recorded"),
        ('"(4, 8)"', '["float", "float"]', None, "shapes were not recorded"),
        ("[" * 3000 + "]" * 3000, '["float"]', None, "shapes were not recorded|has no shape"),
        ('["4, 8", [8, 2]]', '["float", "float"]', None, "has no shape but '4, 8'"),
        ("[[-4, 8], [8, 2]]", '["float", "float"]', None, "has no shape"),
        ("[[true, 8], [8, 2]]", '["float", "float"]', None, "has no shape"),
        ("[[4.5, 8], [8, 2]]", '["float", "float"]', None, "has no shape"),
        (
            "[[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [8, 2]]",
            '["float", "float"]',
            None,
            "has no shape",
        ),
        (
            "[[1000000, 1000000], [8, 2]]",
            '["float", "float"]',
            None,
            "take 4 TB|3.64 TiB|more than 16",
        ),
        ("[[100000000000000000000], [8, 2]]", '["float", "float"]', None, "has no shape"),
        ("[[4000000, 4000000], [8, 2]]", '["float", "float"]', None, "elements"),
        ("[[4, 8], [8, 2]]", '["float", "import os"]', None, "unknown element type 'import os'"),
        ("[[4, 8], [8, 2]]", '["float", 7]', None, "the type of argument 1"),
        ("[[4, 8], [8, 2]]", '["float"]', None, "2 shapes and 1 types"),
        ("[[4, 8], [8, 2]]", '["float", "float"]', "[[-1, 1], [1, 8]]", "has the strides"),
        ("[[4, 8], [8, 2]]", '["float", "float"]', '["x", [1, 8]]', "has the strides"),
        ("[[4, 8], [8, 2]]", '["float", "float"]', "[[1000000000000, 1], [1, 8]]", "elements"),
        ("[[], []]", '["", ""]', None, "none of its arguments"),
    ],
)
def test_what_cannot_be_made(shapes, types, strides, words):
    with pytest.raises(AnalysisError, match=words):
        recorded_call("aten::mm", shapes, types, strides)


@pytest.mark.parametrize(
    "name", ["os.system", "aten::mm; import os", "_C::evil", "", "aten::mm\n", "__import__('os')"]
)
def test_names_that_are_not_in_the_list(name):
    with pytest.raises(AnalysisError, match="does not know the arguments of"):
        recorded_call(name, "[[1]]", '["float"]')
