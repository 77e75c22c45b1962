"""Public logs, from a file to a model by `headrace suggest` alone, beside other learners."""
