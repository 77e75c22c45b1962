from .evaluation_process import EvaluationSettings as EvaluationSettings
from .evaluation_process import run_evaluation as run_evaluation
from .served_arms import ServedArm as ServedArm
from .served_arms import ServedArms as ServedArms
from .windows import WindowMetrics as WindowMetrics
from .windows import Windows as Windows
from .windows import read_minutes as read_minutes
from .windows import read_published as read_published
