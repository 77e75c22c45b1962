from .progress_bars import StepView as StepView
from .tables import evaluation_tables as evaluation_tables
from .tables import facts_of as facts_of
from .tables import print_shown as print_shown
from .tables import print_table as print_table
from .tables import served_arms as served_arms
from .wrapped_text import columns_of as columns_of
from .wrapped_text import wrapped as wrapped
