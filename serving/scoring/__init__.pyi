from .scoring_process import ScoringSettings as ScoringSettings
from .scoring_process import run_scoring as run_scoring
from .scoring_process import scorer_group as scorer_group
