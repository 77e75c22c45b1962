from .errors import LearnerError as LearnerError
from .errors import MissingTorch as MissingTorch
from .errors import NoUncertainty as NoUncertainty
from .errors import RecoveryRefused as RecoveryRefused
from .process import LearnerSettings as LearnerSettings
from .process import run_learner as run_learner
