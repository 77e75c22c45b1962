from .experiment_commands import EXIT_STOPPED as EXIT_STOPPED
from .experiment_commands import ArchiveFolder as ArchiveFolder
from .experiment_commands import Data as Data
from .experiment_commands import app as app
from .run_modes import source_of_log as source_of_log
