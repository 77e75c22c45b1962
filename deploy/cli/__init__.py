"""The commands of `headrace`, one file for each group.

Start with `main.py`, which lists all commands, and `commands.py`, which makes them of functions. A
command imports its part when it is called, so that `headrace --help` and refusals answer at once.

`run`, `demo`, `data`, `fit`, `evaluate`, `learner`, `runs` and `spec` each have one
group of commands. The folders `ingest`, `pserver`, `serving` and `experiments` have the larger
groups.
"""
