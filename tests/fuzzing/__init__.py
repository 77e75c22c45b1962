"""Fuzzing of every decoder of bytes from outside.

The law: a decoder returns or raises its declared error, in bounded time and memory. `decoders` is
the table of the decoders of messages and files, `http_decoders` that of requests. `mutation` makes
the cases, and `isolated` runs them in a process of their own, where a segmentation fault, a hang or
a large allocation is a result like any other.

    python -m tests.fuzzing NAME --cases 100000 --seed 7
"""
