from .event_tallies import RefusalTally as RefusalTally
from .findings import FieldCoverage as FieldCoverage
from .findings import LogSurvey as LogSurvey
from .findings import RefusedEvents as RefusedEvents
from .log_survey import survey_log as survey_log
from .table_refusals import refused_rows as refused_rows
from .table_refusals import unreadable_line as unreadable_line
from .table_refusals import untimely_rows as untimely_rows
