"""The one path from a cell of any carrier to a value, a list, a label or a time.

A cell comes from a CSV, Parquet or NDJSON file, a DataFrame or a Python mapping. Files, surveys,
suggestions, fits, `LocalModel`, the estimator and Spark all read it through this folder, so that
one cell means the same everywhere. All of it is pure and works on columns of Arrow.

`values` has the types that events have, `lists` splits the texts of lists, `labels` says which
cells are a click, and `times` reads times. `time_forms` finds the format of a column of times.
"""
