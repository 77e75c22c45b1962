"""A seeded world in which the joiner core runs beside a reference that is slow and obvious.

`reference` joins by the rules of `ingest.joiner.core.rules`, with lists that it searches from end
to end and forgets nothing of. `world` draws from a seed what two producers send, when it arrives,
and when the joiner is killed; both are given the same, and must make the same examples, count the
same and refuse the same. `python -m tests.ingest.simulation --seeds N` searches; a failing seed
repeats.
"""
