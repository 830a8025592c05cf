from .gains import effects as effects, tokens_equal as tokens_equal
from .measure import trial as trial
from .settings import REMEDIES as REMEDIES, Remedy as Remedy, remedies as remedies
from .verdict import Verdict as Verdict, calibration as calibration, open_trial as open_trial
