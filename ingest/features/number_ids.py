"""The ids of the rows of plain numbers, computed without numba.

`field_ids` of the hashing module is compiled. Its import would take longer than reading a spec.
"""

NUMBER_ROW = 0xC949D7C7509E6557
"""The hash of every plain number: its field has one row, whatever the value."""


def number_id(number: int) -> int:
    """Return the id that `field_ids` of the hashing module gives NUMBER_ROW, in plain Python."""
    mask = (1 << 64) - 1
    word = (NUMBER_ROW + number * 0x9E3779B185EBCA87) & mask
    # fmix64, the finalizer of MurmurHash3
    word = ((word ^ word >> 33) * 0xFF51AFD7ED558CCD) & mask
    word = ((word ^ word >> 33) * 0xC4CEB9FE1A85EC53) & mask
    return ((word ^ word >> 33) & ~1023) | number
