from .cost_measurement import calibrate as calibrate
from .trial_model import trial_spec as trial_spec
