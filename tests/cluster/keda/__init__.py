"""Evaluates the chart's formula for learners with the code of KEDA.

`formula.go` is a program of KEDA's functions: the validation of a ScaledObject, the evaluation of
its formula, and the handling of a trigger that fails. `build` compiles it inside KEDA's module.
`scaling_rule` computes the number of learners that the formula should give. No cluster is needed.
"""
