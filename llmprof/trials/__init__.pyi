from .gains import effects as effects, tokens_equal as tokens_equal
from .capacity import Goodput as Goodput, goodput as goodput
from .measure import trial as trial
from .settings import REMEDIES as REMEDIES, Remedy as Remedy, remedies as remedies
from .study import Study as Study, open_study as open_study
from .tuning import tune as tune
from .verdict import Verdict as Verdict, calibration as calibration, open_trial as open_trial
