from .prediction_log import TOPIC as TOPIC
from .prediction_log import PredictionLog as PredictionLog
from .prediction_log import PredictionLogSettings as PredictionLogSettings
from .prediction_log import ensure_predictions as ensure_predictions
from .request_coverage import RequestCoverage as RequestCoverage
from .request_coverage import RequestFields as RequestFields
from .score_sums import ScoreSums as ScoreSums
from .shadows import Shadows as Shadows
