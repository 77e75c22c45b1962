from .batch import Examples as Examples
from .batch import Kind as Kind
from .batch import UnreadableExamples as UnreadableExamples
from .batch import concatenate as concatenate
from .batch import pack as pack
from .batch import unpack as unpack
from .splitting import Cut as Cut
from .splitting import cut as cut
