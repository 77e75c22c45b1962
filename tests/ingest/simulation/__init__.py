"""A seeded simulation of the joiner core beside a slow and obvious reference.

`reference` joins by the rules of `ingest.joiner.core.rules`, with lists that it searches completely
and never evicts. `world` draws from a seed what two producers send, when it arrives, and when the
joiner is killed. Both get the same input and must make the same examples, counts and refusals.
`make test-long` tries a thousand seeds more; a failing seed reproduces its history.
"""
