"""What a command's exit status says to whoever started it, a person or a supervisor."""

REFUSED = 2
"""A person must put something right. A wrong option gives the same."""

UNREACHABLE = 75
"""Kafka or the store is not there: started again later, it may work (EX_TEMPFAIL, sysexits.h)."""
