from .archiver import ArchiveSettings as ArchiveSettings
from .archiver import run_archiver as run_archiver
