from .committed_state import JoinerState as JoinerState
from .committed_state import StateReader as StateReader
from .committed_state import read_state as read_state
from .joiner_process import JoinerSettings as JoinerSettings
from .joiner_process import run_joiner as run_joiner
from .loop import Joiner as Joiner
from .loop import JoinerPacing as JoinerPacing
