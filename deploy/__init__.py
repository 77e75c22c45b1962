"""The command line, pipelines on one machine, reports, and tools for operators.

`cli` has the commands, and `options` the settings that several share. A command opens its
connections and models (`connections`, `model_sources`), prints through `terminal`, and its `errors`
are for operators. `process_logs` writes log lines. `local` runs pipelines on one machine, `demo`
shows one, and `models` has specs that come with headrace. `operations` has the tools for operators
and `reports` the reports and records of runs.
"""
