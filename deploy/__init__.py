"""The command line, pipelines on one machine, reports, and tools for operators."""
