from .checkpoint import CHECKPOINT_FORMAT as CHECKPOINT_FORMAT
from .checkpoint import JoinerCheckpoint as JoinerCheckpoint
from .checkpoint import JoinerCounters as JoinerCounters
from .input import ChunkReader as ChunkReader
from .input import EventSide as EventSide
from .join import DeadEvents as DeadEvents
from .join import PartitionJoiner as PartitionJoiner
from .rules import FOREVER as FOREVER
