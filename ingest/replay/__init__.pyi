from .backfill import check_backfill as check_backfill
from .replayer import Before as Before
from .replayer import ReplayHooks as ReplayHooks
from .replayer import ReplayProgress as ReplayProgress
from .replayer import ReplayResult as ReplayResult
from .replayer import ReplaySettings as ReplaySettings
from .replayer import replay as replay
