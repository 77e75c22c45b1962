"""The commands of `headrace`, one file for each group.

Start with `main.py`; `options.py` has the options that several commands share. A command imports
its part when it is called, so that `headrace --help` and refusals answer at once.

`run`, `demo`, `data`, `fit`, `evaluate`, `learner`, `runs` and `spec` each have one
group of commands; `pipeline_options` has the options of the first two. The folders `ingest`,
`pserver`, `serving` and `experiments` have the larger groups.
"""
