"""Where the public cases (tests/cases.py) about Kafka, storage, shutdown and Avro are asserted.

Those about time, policies and fencing are in schemas/test_schedule_cases.py and streams/test_policy_cases.py.
"""

from __future__ import annotations

import pytest

from tests.cases import cases_of, is_asserted

AREAS = ("avro", "kafka", "shutdown", "storage")

# A file below tests/, and its test.
WHERE = {
    "avr-001": "schemas/test_avro_cases.py test_avr_001_a_record_is_read_by_the_schema_that_wrote_it",
    "avr-003": "schemas/test_avro_cases.py test_avr_003_fields_in_another_order_are_undecodable",
    "avr-004": "schemas/test_avro_cases.py test_avr_004_a_command_of_a_batch_is_the_one_that_was_meant",
    "avr-006": "schemas/test_avro_cases.py test_avr_006_every_default_is_of_the_first_branch_of_its_union",
    "avr-007": "schemas/test_avro_cases.py test_avr_007_the_case_s_time_has_no_zone_and_is_not_encoded",
    "avr-009": "schemas/test_avro_cases.py test_avr_009_a_time_of_2243_comes_back_as_it_went",
    "avr-010": "schemas/test_avro_cases.py test_avr_010_a_time_beyond_every_calendar_is_undecodable",
    "avr-014": "schemas/test_avro_cases.py test_avr_014_an_id_that_is_none_is_rejected_with_its_field",
    "avr-016": "schemas/test_avro_cases.py "
    "test_avr_016_a_registry_that_does_not_answer_is_asked_again_and_condemns_nothing",
    "avr-017": "schemas/test_avro_cases.py "
    "test_avr_017_and_018_a_hostile_length_and_text_that_is_none_are_undecodable_and_cost_nothing",
    "avr-018": "schemas/test_avro_cases.py "
    "test_avr_017_and_018_a_hostile_length_and_text_that_is_none_are_undecodable_and_cost_nothing",
    "kaf-001": "streams/test_streams_role.py test_bad_records_do_not_stop_what_follows",
    "kaf-002": "streams/test_partition_owner.py "
    "test_a_partition_stands_still_while_its_rejections_find_no_broker_and_then_goes_on",
    "kaf-003": "chaos/test_freeze.py test_an_owner_that_wakes_after_25_s_changes_nothing",
    "kaf-006": "streams/test_outbox_relay.py test_rows_published_but_not_deleted_come_again_under_the_same_ids",
    "kaf-008": "streams/test_rejections.py test_a_producer_with_a_fatal_error_is_replaced",
    "kaf-009": "streams/test_faust_app.py test_an_owner_that_waits_for_the_ledger_stays_in_the_group",
    "kaf-010": "streams/test_rejections.py test_a_whole_record_without_bytes_can_be_rejected",
    "kaf-011": "streams/test_command_versions.py test_an_edit_that_comes_after_a_newer_one_is_rejected",
    "kaf-013": "connectors/client/test_worker.py test_reason_that_is_too_long_for_the_server_ends_early_and_says_so",
    "kaf-017": "streams/test_ownership.py test_assignments_that_change_faster_than_takeovers_end_as_the_last_one_says",
    "shd-001": "connectors/client/test_worker_drain.py test_drain_ends_the_poll_and_lets_running_handlers_finish",
    # The run starts elsewhere at once, but the attempt counts: attempts are charged at lease.
    "shd-002": "connectors/client/test_worker_drain.py "
    "test_handler_that_outlasts_the_deadline_is_stopped_and_its_attempt_fails_for_an_immediate_retry",
    "shd-004": "connectors/client/test_worker_drain.py test_sigterm_drains_and_a_second_one_stops_the_handlers",
    "shd-005": "chaos/test_kill.py test_every_run_is_completed_once_though_one_process_after_the_other_is_killed",
    "shd-008": "contract/test_avro_evolution.py test_an_event_of_a_later_build_is_read_as_unknown",
    "sto-001": "ledger/test_reconnection.py test_a_pool_that_has_given_up_on_the_ledger_has_sessions_once_it_is_back",
    "sto-007": "streams/test_decisions.py test_a_decision_that_was_committed_but_not_remembered_is_not_made_twice",
    "sto-009": "streams/test_timing_state.py test_a_state_that_somebody_has_open_is_left_alone",
    "sto-010": "streams/test_timing_state.py test_a_damaged_state_is_replaced_by_an_empty_one",
    "sto-011": "streams/test_outbox_relay.py test_one_relay_works_and_the_other_stands_by_until_it_stops",
    "sto-012": "streams/test_rebuild.py test_what_events_did_not_tell_is_found_once_it_is_overdue",
}
# Not held yet: behind a pooler that hands sessions out by the transaction a role should refuse to start, and say why.
OPEN = {"sto-005"}


def test_every_case_of_these_areas_is_somewhere() -> None:
    assert cases_of(AREAS) == WHERE.keys() | OPEN


@pytest.mark.parametrize("case_id", WHERE)
def test_a_case_s_test_is_there(case_id: str) -> None:
    assert is_asserted(WHERE[case_id])
