"""The commands of `headrace`, one file for each group.

Start with `main.py`; `options.py` has the options that several commands share. A command imports
its part when it is called, so that `headrace --help` and refusals answer at once.
"""
