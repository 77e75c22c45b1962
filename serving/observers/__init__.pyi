from .prediction_log import TOPIC as TOPIC
from .prediction_log import PredictionLog as PredictionLog
from .prediction_log import PredictionLogSettings as PredictionLogSettings
from .prediction_log import ensure_predictions as ensure_predictions
from .score_sums import ScoreSums as ScoreSums
from .shadows import Shadows as Shadows
