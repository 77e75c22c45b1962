"""`headrace.sklearn.HeadraceClassifier` is a scikit-learn classifier with the service's model."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import headrace
from headrace.sklearn import HeadraceClassifier
from tests.learner.shop import CROSS, shop_rows, shop_spec

NOT_EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "rows are learned one after another: one step of weight 2 is not two steps"
    )
}
SPEC = shop_spec(
    CROSS
    + """
[statistics.rate]
number = 7
statistic = "rate"
of = "item"
"""
)


@parametrize_with_checks(
    [HeadraceClassifier()], expected_failed_checks=lambda _: NOT_EXPECTED, xfail_strict=True
)
def test_scikit_learns_checks_of_a_classifier_pass(
    estimator: HeadraceClassifier, check: Callable[[HeadraceClassifier], None]
) -> None:
    check(estimator)


def table(count: int = 2000, seed: int = 1) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the features of rows, and their labels."""
    rows = shop_rows(count, seed)
    return rows.drop_columns("clicked"), rows["clicked"].to_numpy()


def test_a_classifier_learns_what_a_local_model_learns_from_the_same_rows() -> None:
    rows, clicked = table()
    classifier = HeadraceClassifier(SPEC).fit(rows, clicked)
    local = headrace.LocalModel(SPEC)
    local.learn(shop_rows(2000), label="clicked")
    local.flush()
    asked = rows.slice(0, 100)
    np.testing.assert_array_equal(classifier.predict_proba(asked)[:, 1], local.predict(asked))
    assert len(classifier.model_) == len(local)


def test_a_pickled_classifier_answers_and_learns_on_as_the_original() -> None:
    rows, clicked = table()
    original = HeadraceClassifier(crosses=[["user", "item"]]).fit(rows, clicked)
    copy = pickle.loads(pickle.dumps(original))
    np.testing.assert_array_equal(copy.predict_proba(rows), original.predict_proba(rows))
    for each in (copy, original):
        each.partial_fit(*table(seed=2))
    np.testing.assert_array_equal(copy.predict_proba(rows), original.predict_proba(rows))


def test_parts_learned_in_turn_make_the_model_of_the_whole() -> None:
    rows, clicked = table()
    whole = HeadraceClassifier().fit(rows, clicked)
    parts = HeadraceClassifier()
    for begin in range(0, rows.num_rows, 300):
        parts.partial_fit(rows.slice(begin, 300), clicked[begin : begin + 300], classes=[0, 1])
    np.testing.assert_array_equal(parts.predict_proba(rows), whole.predict_proba(rows))


@pytest.mark.parametrize("architecture", ["logistic_regression", "factorization_machine", "deepfm"])
def test_a_snapshot_has_the_model_and_a_local_model_reads_it(
    architecture: str, tmp_path: Path
) -> None:
    if architecture == "deepfm":
        pytest.importorskip("torch")
    rows, clicked = table(500)
    wanted = HeadraceClassifier(architecture=architecture, random_state=7).fit(rows, clicked)
    name = wanted.to_snapshot(tmp_path)
    found = HeadraceClassifier.from_snapshot(tmp_path, name)
    np.testing.assert_array_equal(found.predict_proba(rows), wanted.predict_proba(rows))
    local = headrace.LocalModel.load(tmp_path, name)
    np.testing.assert_array_equal(local.predict(rows), wanted.predict_proba(rows)[:, 1])


def test_the_time_of_a_row_is_its_hour_and_no_id_of_its_own() -> None:
    rows = shop_rows(50)
    fitted = HeadraceClassifier().fit(rows.select(["item", "timestamp_ms"]), rows["clicked"])
    kinds = {each.name: str(each.transform) for each in fitted.spec_.fields.singles}
    assert kinds == {"item": "id", "timestamp_ms": "hour"}


def test_a_row_of_weight_two_counts_as_one_show_and_moves_the_model_further() -> None:
    rows, clicked = table(1)
    plain = HeadraceClassifier().partial_fit(rows, clicked, classes=[0, 1])
    heavy = HeadraceClassifier().partial_fit(rows, clicked, classes=[0, 1], sample_weight=[2.0])
    moves = [abs(each.decision_function(rows)[0]) for each in (plain, heavy)]
    assert 0 < moves[0] < moves[1]


def test_wrong_parameters_and_targets_are_refused_with_what_was_expected() -> None:
    rows, clicked = table(100)
    with pytest.raises(ValueError, match=r"names of columns.*got 'colour'"):
        HeadraceClassifier(crosses=[["user", "colour"]]).fit(rows, clicked)
    with pytest.raises(ValueError, match="epochs: expected 1 or more, got 0"):
        HeadraceClassifier(epochs=0).fit(rows, clicked)
    with pytest.raises(headrace.SpecError, match="architecture"):
        HeadraceClassifier(architecture="forest").fit(rows, clicked)
    with pytest.raises(ValueError, match="expected two classes, got 1 class"):
        HeadraceClassifier().fit(rows, np.zeros(100))
    with pytest.raises(ValueError, match=r"expected classes among .*got \[2\]"):
        HeadraceClassifier().fit(rows, clicked).partial_fit(rows, np.where(clicked, 2, 0))
    ahead = pa.array([*rows["timestamp_ms"].to_pylist()[:-1], 7_415_712_000_000])
    later = rows.set_column(rows.schema.get_field_index("timestamp_ms"), "timestamp_ms", ahead)
    with pytest.raises(ValueError, match=r"at most a day ahead, got 7415712000000"):
        HeadraceClassifier().fit(later, clicked)
    HeadraceClassifier().fit(rows, clicked).predict(later)


def test_columns_that_do_not_fit_are_refused_by_name() -> None:
    rows, clicked = table(100)
    with pytest.raises(ValueError, match=r"^X: expected columns .* got 'usr' in place of 'user'"):
        HeadraceClassifier(shop_spec()).fit(
            rows.rename_columns([{"user": "usr"}.get(name, name) for name in rows.column_names]),
            clicked,
        )
    with pytest.warns(UserWarning, match="expected a column for each field .* got none for item"):
        HeadraceClassifier(shop_spec()).fit(rows.drop_columns(["item"]), clicked)
    mixed = pd.DataFrame({"colour": [1, "red", 2.5, None]})
    with pytest.raises(ValueError, match=r"^X: expected columns with values of one type .*colour"):
        HeadraceClassifier().fit(mixed, [0, 1, 0, 1])
