from .classifier import HeadraceClassifier as HeadraceClassifier
from .in_memory_model import InMemoryModel as InMemoryModel
from .local_model import LearnSummary as LearnSummary
from .local_model import LocalModel as LocalModel
from .local_model import RefusedEvent as RefusedEvent
from .table_examples import TableEncoder as TableEncoder
from .table_examples import times_of as times_of
