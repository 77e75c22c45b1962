"""Lets a test step the wall clock of this Python process, without the right to set the real one.

Python runs this file at its start, when its folder is in PYTHONPATH. `time.time` and `time.time_ns`
then add the seconds that the file `$HEADRACE_CHAOS_CLOCKS/<pid>` holds as a float64. Steady clocks
and the clocks of servers stay as they are, as with a real step on one machine of several.
"""

import mmap
import os
import struct
import time
from pathlib import Path

_folder = os.environ.get("HEADRACE_CHAOS_CLOCKS")
if _folder:
    _path = Path(_folder) / str(os.getpid())
    _path.write_bytes(bytes(8))
    with _path.open("r+b") as _file:
        _step = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
    _time, _time_ns, _unpack = time.time, time.time_ns, struct.Struct("d").unpack_from

    def _stepped() -> float:
        return _time() + float(_unpack(_step)[0])

    def _stepped_ns() -> int:
        return _time_ns() + int(_unpack(_step)[0] * 1e9)

    time.time, time.time_ns = _stepped, _stepped_ns
