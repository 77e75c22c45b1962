from .archived_examples import ArchivedHour as ArchivedHour
from .archived_examples import ExampleArchive as ExampleArchive
from .archiver import ArchiveSettings as ArchiveSettings
from .archiver import run_archiver as run_archiver
