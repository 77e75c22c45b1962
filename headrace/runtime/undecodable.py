"""The errors that msgspec raises for bytes it cannot decode.

They are DecodeError for another format, ValidationError for another type, UnicodeDecodeError for
text that is not UTF-8, and RecursionError for deep nesting. A handler that names only some of them
lets a single message end a process. `tests/test_house_rules.py` therefore requires `UNDECODABLE`.
"""

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
