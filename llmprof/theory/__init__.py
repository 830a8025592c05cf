"""Theory: parameters, FLOPs, bytes, memory and lower bounds of times of a model on a machine, from
its config alone.

>>> from llmprof import theory
>>> theory.profile("Qwen3-8B", "H200", batch_size=8).decode_latency_s < 0.005
True
"""

from typing import TYPE_CHECKING

from llmprof.errors import door

if TYPE_CHECKING:
    from llmprof.theory.bound import find_device, parse_device, read_device
    from llmprof.theory.calibration import (
        Calibration,
        Observation,
        calibrate,
        calibrated,
        read_calibration,
    )
    from llmprof.theory.catalog import model_config, names
    from llmprof.theory.familiar import llm_profile
    from llmprof.theory.plan import Efficiency, Plan, Requests
    from llmprof.theory.profiler import Profile, profile
    from llmprof.theory.ranges import measured_steps, observations, read_steps, sweep
    from llmprof.theory.shapes import Shape, shape
    from llmprof.theory.speculative import speculate

door(
    globals(),
    {
        "theory.bound": "find_device parse_device read_device",
        "theory.calibration": "Calibration Observation calibrate calibrated read_calibration",
        "theory.catalog": "model_config names",
        "theory.familiar": "llm_profile",
        "theory.plan": "Efficiency Plan Requests",
        "theory.profiler": "Profile profile",
        "theory.ranges": "measured_steps observations read_steps sweep",
        "theory.shapes": "Shape shape",
        "theory.speculative": "speculate",
    },
)
