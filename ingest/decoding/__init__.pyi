from .decoder import Decoded as Decoded
from .decoder import Decoder as Decoder
from .json_scanner import TICK as TICK
