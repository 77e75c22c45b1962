from .errors import BadCheckpoint as BadCheckpoint
from .errors import ExamplesMissing as ExamplesMissing
from .errors import KafkaUnreachable as KafkaUnreachable
from .errors import MissingTopic as MissingTopic
from .errors import OffsetGone as OffsetGone
from .errors import StreamError as StreamError
from .errors import TransactionAborted as TransactionAborted
