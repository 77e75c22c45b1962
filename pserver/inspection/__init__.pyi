from .buckets import BucketSurvey as BucketSurvey
from .buckets import count_in_logs as count_in_logs
from .model_survey import Survey as Survey
from .model_survey import drop_leftovers as drop_leftovers
from .model_survey import survey as survey
from .nodes import NodeSurvey as NodeSurvey
from .usage import signs_of_use as signs_of_use
