from .decoder import Decoded as Decoded
from .decoder import Decoder as Decoder
from .decoder import hash_texts as hash_texts
from .json_scanner import ABSENT as ABSENT
from .json_scanner import LIST as LIST
from .json_scanner import TEXT as TEXT
from .json_scanner import TICK as TICK
