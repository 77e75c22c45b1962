from .execution import MissingExecutor as MissingExecutor
from .execution import open_executor as open_executor
from .executor_kind import ExecutorKind as ExecutorKind
from .remote_arms import RemoteArms as RemoteArms
from .staged_log import StagedLog as StagedLog
from .staged_log import chunk_sizes as chunk_sizes
