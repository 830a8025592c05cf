from .bound import device_of as device_of, find_device as find_device, read_device as read_device
from .calibration import (
    Calibration as Calibration,
    Observation as Observation,
    calibrate as calibrate,
    calibrated as calibrated,
    read_calibration as read_calibration,
)
from .catalog import config_of as config_of, names as names
from .familiar import llm_profile as llm_profile
from .plan import Efficiency as Efficiency, Plan as Plan, Requests as Requests
from .profiler import Profile as Profile, profile as profile
from .ranges import (
    measured_steps as measured_steps,
    observations as observations,
    read_steps as read_steps,
    sweep as sweep,
)
from .shapes import Shape as Shape, shape as shape
from .speculative import speculate as speculate
