"""Theory: parameters, FLOPs, bytes, memory and lower bounds of times of a model on a machine, from its config alone.

>>> from llmprof import theory
>>> theory.profile("Qwen3-8B", "H200", batch_size=8).decode_latency_s < 0.005
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach

__all__ = [
    "Calibration",
    "Efficiency",
    "Observation",
    "Plan",
    "Profile",
    "Requests",
    "Shape",
    "calibrate",
    "calibrated",
    "config_of",
    "device_of",
    "find_device",
    "llm_profile",
    "measured_steps",
    "names",
    "observations",
    "profile",
    "read_calibration",
    "read_device",
    "read_steps",
    "shape",
    "sweep",
]

if TYPE_CHECKING:
    from llmprof.theory.bound import device_of, find_device, read_device
    from llmprof.theory.calibration import Calibration, Observation, calibrate, calibrated, read_calibration
    from llmprof.theory.catalog import config_of, names
    from llmprof.theory.familiar import llm_profile
    from llmprof.theory.plan import Efficiency, Plan, Requests
    from llmprof.theory.profiler import Profile, profile
    from llmprof.theory.ranges import measured_steps, observations, read_steps, sweep
    from llmprof.theory.shapes import Shape, shape
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "Calibration": "llmprof.theory.calibration",
            "Efficiency": "llmprof.theory.plan",
            "Observation": "llmprof.theory.calibration",
            "Plan": "llmprof.theory.plan",
            "Profile": "llmprof.theory.profiler",
            "Requests": "llmprof.theory.plan",
            "Shape": "llmprof.theory.shapes",
            "calibrate": "llmprof.theory.calibration",
            "calibrated": "llmprof.theory.calibration",
            "config_of": "llmprof.theory.catalog",
            "device_of": "llmprof.theory.bound",
            "find_device": "llmprof.theory.bound",
            "llm_profile": "llmprof.theory.familiar",
            "measured_steps": "llmprof.theory.ranges",
            "names": "llmprof.theory.catalog",
            "observations": "llmprof.theory.ranges",
            "profile": "llmprof.theory.profiler",
            "read_calibration": "llmprof.theory.calibration",
            "read_device": "llmprof.theory.bound",
            "read_steps": "llmprof.theory.ranges",
            "shape": "llmprof.theory.shapes",
            "sweep": "llmprof.theory.ranges",
        },
    )
