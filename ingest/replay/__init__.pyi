from .layout import LogLayout as LogLayout
from .layout import load_layout as load_layout
from .ndjson import Line as Line
from .replayer import Before as Before
from .replayer import ReplayProgress as ReplayProgress
from .replayer import ReplayResult as ReplayResult
from .replayer import ReplaySettings as ReplaySettings
from .replayer import replay as replay
