from .scoring_process import ScoringSettings as ScoringSettings
from .scoring_process import run_scoring as run_scoring
