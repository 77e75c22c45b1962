from .scoring_process import ScoringSettings as ScoringSettings
from .scoring_process import run_scoring as run_scoring
from .scoring_process import scored_topic as scored_topic
from .scoring_process import scorer_group as scorer_group
