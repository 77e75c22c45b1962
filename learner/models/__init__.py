"""Models of rows: the interface that the loop and the server use, and `open_model`.

A model keeps all it has learned in rows of one width, in a view that its caller passes in. So
everything that holds for rows (exactly once, replicas, snapshots) holds for every model. `factory`
decides which model a spec means and imports only that one: a logistic regression never loads the
kernels, or the libraries, of another. Read `protocols`, `row_model`, then `logistic` with
`logistic_kernels`, and `factorization_machine` with `factorization_machine_kernels`. Networks are
in `deep`; learners that step their layers together do so through `sync_group`. `explanations` and
`uncertainty` look at a score, and `final_rows` are the weights of a row that a prediction reads.
"""
