"""Every check of functions.lua is needed: without it, a law of the store fails.

A mutant is the library with one check taken out by text, on an embedded server, which answers as a
real one does (tests/embedded_valkey/test_same_answers.py). The mutants of the simulation take some
of these checks out under faults (tests/simulation/test_mutants.py).
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.pserver import redis_backend
from tests.pserver.laws.redis_laws import RedisLaws
from tests.pserver.laws.store_worlds import EmbeddedWorld

SOURCE = Path(redis_backend.__path__[0], "functions.lua").read_text()


class LuaMutant(NamedTuple):
    """A check, its replacement, and the law that fails without it."""

    name: str
    check: str
    instead: str
    law: str
    arguments: tuple[Any, ...] = ()
    occurrence: int = 0
    """Index of the replaced text among equal ones."""
    slow: bool = False
    """Whether the law waits for seconds before it fails."""

    @property
    def library(self) -> str:
        pieces = SOURCE.split(self.check)
        at = self.occurrence + 1
        return self.check.join(pieces[:at]) + self.instead + self.check.join(pieces[at:])


TRUE, FALSE = "true", "false"
MUTANTS = [
    LuaMutant("missing bucket pushed", "if not found[1] then", "if false then",
              "test_a_bucket_that_came_back_empty_stops_every_call", occurrence=0),
    LuaMutant("missing bucket claimed", "if not found[1] then", "if false then",
              "test_a_bucket_that_came_back_empty_stops_every_call", occurrence=1),
    LuaMutant("missing bucket folded", "if not found[1] then", "if false then",
              "test_a_bucket_that_came_back_empty_stops_every_call", occurrence=2),
    LuaMutant("bucket created twice", "if redis.call('HEXISTS', keys[1], 'version') == 1 then",
              "if false then", "test_creating_a_model_keeps_the_buckets_that_exist"),
    LuaMutant("bucket created over a load",
              "if redis.call('HEXISTS', keys[1], 'loading') == 1 then", "if false then",
              "test_creating_a_model_never_takes_the_rows_of_an_unfinished_load"),
    LuaMutant("push at any mark", "found[place] == args[i + 1]", TRUE,
              "test_a_push_that_does_not_begin_at_the_marks_changes_nothing"),
    LuaMutant("push at the last mark alone", "applies and found[place]", "found[place]",
              "test_a_push_of_several_sources_moves_all_marks_or_none"),
    LuaMutant("changes in one call", "if #changes > MOST_VALUES_A_CALL then", "if false then",
              "test_a_push_of_thousands_of_sources_leaves_a_usable_bucket", (4_500,)),
    LuaMutant("marks in one call", "values_of(marks, fields)",
              "redis.call('HMGET', marks, unpack(fields))",
              "test_a_push_of_thousands_of_sources_leaves_a_usable_bucket", (9_000,)),
    LuaMutant("entry without the nonce before", "'previous', head[2], 'blob'",
              "'previous', nonce, 'blob'", "test_entries_are_a_chain_of_nonces"),
    LuaMutant("lease stolen", "if found[2] ~= '' and now < tonumber(found[3]) then",
              "if false then", "test_only_one_keeper_holds_a_bucket"),
    LuaMutant("lease that never ends for others", "and now < tonumber(found[3])", "",
              "test_a_lease_ends_by_itself", slow=True),
    LuaMutant("folds counted on across leases", "'keeper', args[1], 'folds', '0'",
              "'keeper', args[1]", "test_folds_are_accepted_in_order_and_once"),
    LuaMutant("folds counted anew at a renewal", "'lease_ms', text(now",
              "'folds', '0', 'lease_ms', text(now",
              "test_renewing_a_lease_keeps_the_count_of_folds"),
    LuaMutant("lease released by any keeper",
              "if redis.call('HGET', keys[1], 'keeper') == args[1] then", "if true then",
              "test_only_one_keeper_holds_a_bucket"),
    LuaMutant("fold of another keeper", "if found[3] ~= keeper then", "if false then",
              "test_a_fold_needs_the_lease"),
    LuaMutant("fold after the lease", "if now_ms() >= tonumber(found[4]) then", "if false then",
              "test_an_ended_lease_folds_nothing_though_no_other_keeper_took_it"),
    LuaMutant("fold of any number", "if found[5] ~= folds then", "if false then",
              "test_folds_are_accepted_in_order_and_once"),
    LuaMutant("fold of another history", "if not entry or entry[2][2] ~= nonce then",
              "if not entry then", "test_a_fold_needs_the_entry_it_names"),
    LuaMutant("fold of a version to come", "if not entry or entry[2][2] ~= nonce then",
              "if entry and entry[2][2] ~= nonce then", "test_a_fold_needs_the_entry_it_names"),
    LuaMutant("fold without removals", "in_parts('HDEL'", "local _ = (function() end)('HDEL'",
              "test_a_fold_removes_the_rows_that_are_gone", occurrence=1),
    LuaMutant("fold not counted", "redis.call('HSET', keys[2], 'folds', args[2])", "",
              "test_a_trim_needs_lease_entry_and_count_of_folds"),
    LuaMutant("fold without fence", "if refusal then", "if false then",
              "test_a_fold_needs_the_lease", occurrence=0),
    LuaMutant("deletion without fence", "if refusal then", "if false then",
              "test_a_deletion_needs_lease_entry_and_count_of_folds", occurrence=1),
    LuaMutant("trim without fence", "if refusal then", "if false then",
              "test_a_trim_needs_lease_entry_and_count_of_folds", occurrence=2),
    LuaMutant("trim of entries brought back",
              "if tonumber(redis.call('HGET', marks, 'trimmed')) < tonumber(args[6]) then",
              "if false then", "test_a_failover_that_brings_trimmed_entries_back_stops_the_trim"),
    LuaMutant("trim that goes back", "  if entry then\n    redis.call('XTRIM'",
              "  if true then\n    redis.call('HSET', marks, 'trimmed', through)\n"
              "    redis.call('XTRIM'",
              "test_a_trim_removes_the_entries_it_names_and_no_others"),
    LuaMutant("trimmed bytes not counted", ", 'trimmed_bytes', entry[2][8])", ")",
              "test_a_trim_removes_the_entries_it_names_and_no_others"),
    LuaMutant("load over a bucket", "if redis.call('HEXISTS', keys[2], 'version') == 1 then",
              "if false then", "test_a_load_of_an_existing_bucket_is_refused"),
    LuaMutant("load over leftovers", "redis.call('UNLINK', unpack(keys))\n  redis.call('HSET'",
              "redis.call('HSET'",
              "test_an_interrupted_load_leaves_the_bucket_missing_and_nothing_behind"),
    LuaMutant("load without token", "if redis.call('HGET', marks, 'loading') ~= token then",
              "if false then",
              "test_a_load_is_refused_once_another_load_of_its_bucket_began", (0,)),
    LuaMutant("rows of another load", "if refusal then", "if false then",
              "test_a_load_is_refused_once_another_load_of_its_bucket_ended", occurrence=3),
    LuaMutant("end of another load", "if refusal then", "if false then",
              "test_a_load_is_refused_once_another_load_of_its_bucket_began", (0,), occurrence=4),
    LuaMutant("end of a load keeps the token", "redis.call('HDEL', marks, 'loading')", "",
              "test_a_late_copy_of_the_call_that_ends_a_load_is_refused"),
    LuaMutant("switch without the token", "if args[3] ~= '' and redis.call('GET', keys[2])",
              "if args[3] == nil and redis.call('GET', keys[2])",
              "test_the_shape_is_replaced_only_under_the_token_and_as_it_was_read"),
    LuaMutant("switch of another shape", "if redis.call('GET', keys[1]) ~= args[1] then",
              "if false then",
              "test_the_shape_is_replaced_only_under_the_token_and_as_it_was_read", occurrence=0),
    LuaMutant("token taken from another reshard", "if redis.call('GET', keys[1]) ~= args[1] then",
              "if false then", "test_the_token_of_another_reshard_is_not_given_back", occurrence=1),
]  # fmt: skip


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=mutant.name.replace(" ", "-"),
            marks=[pytest.mark.long] if mutant.slow else [],
        )
        for mutant in MUTANTS
    ],
)
def test_a_law_notices_a_check_taken_out_of_the_functions(mutant: LuaMutant) -> None:
    assert SOURCE.count(mutant.check) > mutant.occurrence, "the library lacks the mutant's text"
    law: Any = getattr(RedisLaws(), mutant.law)
    try:
        law(EmbeddedWorld(mutant.library), *mutant.arguments)
    except BaseException as noticed:
        if isinstance(noticed, KeyboardInterrupt):
            raise
        return
    pytest.fail(f"{mutant.law} does not notice: {mutant.name}")
