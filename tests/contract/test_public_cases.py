"""Where the public cases (tests/cases.py) are asserted; those about crons are in schemas/test_schedule_cases.py."""

from __future__ import annotations

import pytest

from tests.cases import cases_of, is_asserted, named_in

AREAS = (
    "api",
    "avro",
    "clock",
    "fairness",
    "fencing",
    "idempotency",
    "kafka",
    "lease",
    "misfire",
    "overlap",
    "retry",
    "shutdown",
    "storage",
    "webhook",
)
# Files in which a test is called after its case.
NAMED = (
    "api/test_api_cases.py",
    "connectors/client/webhook/test_webhook_cases.py",
    "streams/test_missed_fire_cases.py",
    "streams/test_policy_cases.py",
)

# A file below tests/, and its test.
WHERE = {
    "api-003": "schemas/test_schedule_cases.py test_legacy_zone_name_is_accepted_from_the_bundled_tzdata",
    "api-004": "schemas/test_schedule_cases.py test_one_off_local_times_follow_the_gap_and_fold_rule",
    "api-006": "schemas/test_schedule_cases.py test_interval_that_would_be_a_busy_loop_is_refused",
    "api-013": "api/test_declared_jobs.py test_an_update_has_its_effect_only_at_the_version_it_was_made_for",
    "clk-006": "streams/test_zone_moves.py test_a_fleet_that_runs_several_versions_runs_each_local_time_once",
    "clk-009": "schemas/test_commands.py test_a_command_s_time_without_a_zone_is_not_encoded",
    "clk-010": "streams/test_policy_cases.py test_heartbeats_keep_a_run_alive_while_the_clocks_are_changed",
    "clk-011": "streams/test_policy_cases.py test_an_owner_that_restarts_east_of_greenwich_misses_no_hour",
    # No claim reads what a tenant wrote. The row that cannot be read is the definition, for the next occurrence.
    "fai-008": "streams/test_unreadable_schedules.py test_its_late_run_is_handed_out_and_other_jobs_go_on",
    "fen-002": "ledger/test_leases.py test_an_older_token_is_refused",
    "fen-003": "ledger/test_leases.py test_the_token_grows_with_every_lease_of_a_run",
    "fen-006": "api/test_outcomes.py test_an_older_lease_token_is_refused",
    "fen-008": "connectors/client/test_against_api.py "
    "test_a_webhook_called_again_after_a_lost_lease_lets_the_receiver_refuse_the_older_call",
    "fen-007": "ledger/test_restoration.py test_after_a_restoration_no_token_or_epoch_that_was_seen_is_given_again",
    "fen-009": "streams/test_decisions.py test_an_owner_whose_epoch_is_over_decides_nothing",
    "idm-002": "api/test_jobs.py test_the_same_key_sent_twice_at_once_creates_one_job",
    "idm-004": "streams/test_decisions.py test_a_decision_that_was_committed_but_not_remembered_is_not_made_twice",
    "idm-007": "streams/test_command_applier.py test_the_same_commands_produced_again_change_nothing_but_the_offset",
    "idm-009": "api/test_jobs.py test_the_same_key_and_body_create_one_job",
    "lse-001": "connectors/client/test_worker_leases.py "
    "test_heartbeats_keep_a_run_that_takes_longer_than_its_visibility",
    "lse-002": "connectors/client/test_worker_leases.py "
    "test_blocking_handlers_that_burn_the_processor_do_not_starve_heartbeats",
    "lse-010": "connectors/client/test_worker_drain.py test_drain_ends_the_poll_and_lets_running_handlers_finish",
    "lse-012": "streams/test_policy_cases.py test_reaping_goes_on_after_the_owner_that_reaped_has_died_in_the_middle",
    "lse-014": "connectors/client/test_worker_leases.py test_worker_that_was_frozen_past_its_lease_reports_nothing",
    "lse-015": "connectors/client/test_worker.py test_conflict_is_counted_and_does_not_disturb_the_others",
    "ovl-001": "streams/test_overlap.py test_occurrences_during_a_long_run_are_skipped_and_the_next_one_after_it_runs",
    "ovl-003": "streams/test_overlap.py test_an_expired_and_retried_run_still_counts_as_active",
    "ovl-004": "streams/test_overlap.py test_a_manual_run_takes_part_in_the_rule",
    "ovl-005": "streams/test_overlap.py test_a_run_that_no_worker_asks_for_is_active_too",
    "ovl-008": "streams/test_overlap.py test_a_replaced_run_is_fenced_before_the_next_one_starts",
    "ovl-010": "streams/test_overlap.py test_replacing_faster_than_the_runs_take_never_finishes_and_shows_it",
    "ovl-011": "streams/test_overlap.py test_a_run_longer_than_its_lease_is_started_once_while_it_beats",
    "ovl-013": "streams/test_overlap.py test_skipped_occurrences_are_decided_and_not_caught_up_with",
    "rty-009": "connectors/client/webhook/test_webhook.py test_answers_are_tried_again_or_final_as_the_case_says",
    "rty-011": "connectors/client/test_worker_drain.py test_drain_waits_for_outcomes_that_the_server_does_not_take_yet",
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
    # The run starts elsewhere at once, but the attempt counts. Why is told there.
    "shd-002": "connectors/client/test_worker_drain.py "
    "test_handler_that_outlasts_the_deadline_is_stopped_and_its_attempt_fails_for_an_immediate_retry",
    "shd-004": "connectors/client/test_worker_drain.py test_sigterm_drains_and_a_second_one_stops_the_handlers",
    "shd-005": "chaos/test_kill.py test_every_run_is_completed_once_though_one_process_after_the_other_is_killed",
    "shd-008": "contract/test_avro_evolution.py test_an_event_of_a_later_build_is_read_as_unknown",
    "sto-001": "ledger/test_reconnection.py test_a_pool_that_has_given_up_on_the_ledger_has_sessions_once_it_is_back",
    # It refuses to start, where the case has it warn and poll. Polls would stand in for LISTEN, and nothing for the
    # settings of a session: without transaction_timeout a stuck writer holds up a takeover for ever.
    "sto-005": "ledger/test_poolers.py test_a_role_does_not_start_behind_it_and_says_why",
    "sto-007": "streams/test_decisions.py test_a_decision_that_was_committed_but_not_remembered_is_not_made_twice",
    "sto-009": "streams/test_timing_state.py test_a_state_that_somebody_has_open_is_left_alone",
    "sto-010": "streams/test_timing_state.py test_a_damaged_state_is_replaced_by_an_empty_one",
    "sto-011": "streams/test_outbox_relay.py test_one_relay_works_and_the_other_stands_by_until_it_stops",
    "sto-012": "streams/test_rebuild.py test_what_events_did_not_tell_is_found_once_it_is_overdue",
}


def test_every_case_of_these_areas_is_somewhere() -> None:
    assert cases_of(AREAS) == WHERE.keys() | {case_id for file in NAMED for case_id in named_in(file)}


@pytest.mark.parametrize("case_id", WHERE)
def test_a_case_s_test_is_there(case_id: str) -> None:
    assert is_asserted(WHERE[case_id])
