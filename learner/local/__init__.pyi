from .local_model import LearnSummary as LearnSummary
from .local_model import LocalModel as LocalModel
from .local_model import RefusedEvent as RefusedEvent
