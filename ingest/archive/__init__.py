"""The archiver (`headrace ingest sink`): writes topics to Parquet files by hour, exactly once.

`archiver` gathers records and is the process, `parquet_folder` writes them in steps that count
completely or not at all.

`archived_examples` reads the examples back, in the order of event time.
"""
