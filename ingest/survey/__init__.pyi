from .findings import FieldCoverage as FieldCoverage
from .findings import LogSurvey as LogSurvey
from .log_survey import survey_log as survey_log
