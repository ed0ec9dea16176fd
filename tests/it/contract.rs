//! The behaviour that all kinds of lock share: one set of tests, expanded for each kind and
//! topology.
//!
//! The matrix says which capabilities a kind has. A kind without a capability has no tests of it, and a reason instead.
//! [`NOT_BEFORE_REDIS_7`] says what an old server cannot show, and [`NOT_IN_MEMORY`] what a real server alone can.

mod clocks;
mod closures;
mod crashes;
mod exclusion;
mod faults;
mod holder_and_waiter;
mod interface;
mod links;
mod loss;
mod min_hold;
mod operators;
mod outages;
mod refusals;
mod rights;
mod storms;
mod traces;
mod waits;

use std::collections::HashSet;
use std::env;
use std::process::Command;

use crate::support::{SCRIPTS_NEED_NO_REPLICAS, cannot_show, lacks_in_memory};

/// The behaviours that Redis before 7 cannot show, each with the reason. Their tests print the reason there.
const NOT_BEFORE_REDIS_7: [(&str, &str); 2] = [
    (
        "replicas_that_are_missing_for_a_while_cost_nothing",
        SCRIPTS_NEED_NO_REPLICAS,
    ),
    (
        "a_server_that_loads_its_data_for_a_while_costs_nothing",
        "a server that loads its data refuses CONFIG SET, so the test cannot end the fault",
    ),
];

/// The behaviours that a real server alone can show, each with what the Redis in memory lacks for it. Their tests print that
/// there.
const NOT_IN_MEMORY: [(&str, &str); 13] = [
    ("a_disk_that_fails_for_a_while_costs_nothing", "a disk"),
    (
        "a_master_that_is_a_replica_for_a_while_costs_nothing",
        "replicas",
    ),
    (
        "a_restart_that_keeps_the_data_costs_nothing",
        "data on a disk",
    ),
    (
        "a_server_that_loads_its_data_for_a_while_costs_nothing",
        "data on a disk",
    ),
    (
        "a_waiter_that_gives_up_beside_a_replica_leaves_the_queue_of_the_master",
        "replicas",
    ),
    (
        "an_acquire_whose_answer_was_lost_leaves_no_orphan",
        "a count of the commands",
    ),
    (
        "an_endless_script_of_another_client_costs_nothing",
        "a time limit of scripts",
    ),
    (
        "clients_paused_for_less_than_the_lease_lose_nothing",
        "CLIENT PAUSE",
    ),
    (
        "clients_paused_for_longer_than_the_lease_lose_it_once",
        "CLIENT PAUSE",
    ),
    (
        "connections_killed_one_after_the_other_lose_nothing",
        "CLIENT KILL",
    ),
    ("connections_that_are_closed_cost_nothing", "CLIENT KILL"),
    ("full_memory_refuses_only_new_locks", "a limit of memory"),
    (
        "replicas_that_are_missing_for_a_while_cost_nothing",
        "replicas",
    ),
];

/// Returns whether the servers of the tests can show a behaviour. Prints the reason if they cannot.
fn is_shown(behaviour: &str) -> bool {
    let why = |all: &[(&str, &'static str)]| {
        let mut all = all.iter();
        all.find(|(name, _)| *name == behaviour)
            .map(|(_, why)| *why)
    };
    let is_old = why(&NOT_BEFORE_REDIS_7).is_some_and(cannot_show);
    !is_old && !why(&NOT_IN_MEMORY).is_some_and(lacks_in_memory)
}

/// The row of a kind in the matrix.
struct Row {
    kind: &'static str,
    /// Each capability with the reason why the kind lacks it, or `None` if the kind has it.
    answers: &'static [(&'static str, Option<&'static str>)],
}

/// Keeps a test of a capability that a kind has.
macro_rules! yes {
    ($test:item) => {
        $test
    };
}

/// Leaves out a test of a capability that a kind lacks.
macro_rules! no {
    ($test:item) => {};
}

/// Lists the behaviours by the capability that they need, and by the module that tests them.
macro_rules! behaviours {
    ($($capability:ident { $($module:ident { $($behaviour:ident,)* })* })*) => {
        const BEHAVIOURS: &[(&str, &[&str])] = &[
            $((stringify!($capability), &[$($(stringify!($behaviour),)*)*]),)*
        ];

        /// Makes the tests of the row in whose module it is called.
        macro_rules! tests {
            () => {
                $($($(
                    $capability! {
                        #[test]
                        fn $behaviour() {
                            if super::is_shown(stringify!($behaviour)) {
                                on(TOPOLOGY, || super::$module::$behaviour(KIND));
                            }
                        }
                    }
                )*)*)*
            };
        }
    };
}

/// Lists the kinds on each topology, with an answer to each capability. A missing answer does not
/// compile.
macro_rules! matrix {
    ($($name:ident = $kind:ident on $topology:ident {
        $($capability:ident: $answer:ident $(($reason:literal))?,)*
    })*) => {
        const MATRIX: &[Row] = &[$(Row {
            kind: stringify!($name),
            answers: &[$((stringify!($capability), reason!($answer $($reason)?)),)*],
        },)*];

        $(mod $name {
            use crate::support::{Kind, Topology, on};

            $(use super::$answer as $capability;)*

            const KIND: Kind = Kind::$kind;
            const TOPOLOGY: Topology = Topology::$topology;

            tests!();
        })*
    };
}

macro_rules! reason {
    (yes) => {
        None
    };
    (no $reason:literal) => {
        Some($reason)
    };
}

use {no, yes};

behaviours! {
    locks {
        interface {
            a_handle_returns_its_name_even_if_the_name_is_invalid,
            code_that_is_generic_over_the_kind_can_lock,
            try_lock_until_waits_until_its_deadline,
        }
        exclusion {
            a_free_lock_is_granted_and_released,
            released_on_drop,
            released_on_panic,
            keeps_out_threads_of_its_manager,
            keeps_out_other_managers,
            keeps_out_other_processes,
            three_hundred_threads_finish,
        }
        waits {
            a_wait_returns_none_at_its_deadline_and_not_before,
            a_release_lets_in_a_thread_of_its_manager,
            a_release_wakes_another_manager,
            a_release_wakes_another_process,
            close_ends_waits_and_leaves_guards,
        }
        crashes {
            a_killed_holder_delays_others_by_its_lease,
        }
        loss {
            a_lock_is_renewed_for_longer_than_its_lease,
            an_unrenewed_lock_is_lost_at_the_end_of_its_lease,
            a_guard_never_reads_held_after_its_key_is_gone,
            a_silent_server_loses_the_lock_at_its_deadline_for_ever,
            a_deleted_key_is_lost_as_removed,
            on_lost_disconnects_at_a_healthy_end,
            extend_lengthens_and_never_shortens,
            max_hold_releases_for_the_others,
            a_lost_lock_goes_to_the_next_waiter,
        }
        faults {
            a_wait_survives_the_servers_restart,
            a_release_that_fails_is_repeated,
        }
        min_hold {
            a_released_lock_stays_taken_until_min_hold_is_over,
            a_lock_that_is_kept_goes_to_no_thread_of_its_process,
            a_release_after_min_hold_frees_the_lock,
            a_lock_that_max_hold_ends_stays_taken_until_min_hold_is_over,
            a_lock_that_was_lost_is_not_kept,
        }
        storms {
            scripts_flushed_all_the_time_lose_nothing,
            connections_killed_one_after_the_other_lose_nothing,
        }
        refusals {
            a_key_of_another_type_is_the_wrong_type,
            invalid_names_are_refused_before_a_request_is_sent,
            invalid_options_are_refused_before_a_request_is_sent,
        }
        traces {
            a_lock_leaves_only_its_fence_in_redis,
        }
        operators {
            a_note_is_shown_with_its_holder,
            a_request_for_its_release_is_heard,
        }
    }
    counts_listeners {
        crashes {
            killed_waiters_delay_nobody,
        }
    }
    hands_over {
        crashes {
            hung_waiters_delay_others_by_one_pickup_window_together,
        }
    }
    one_server {
        links {
            an_acquire_whose_answer_was_lost_leaves_no_orphan,
            a_release_whose_answer_was_lost_frees_it,
            a_dead_link_loses_the_lock_at_its_deadline_for_ever,
            a_wait_outlives_the_faults_of_its_link,
        }
        outages {
            a_master_that_is_a_replica_for_a_while_costs_nothing,
            a_waiter_that_gives_up_beside_a_replica_leaves_the_queue_of_the_master,
            replicas_that_are_missing_for_a_while_cost_nothing,
            a_disk_that_fails_for_a_while_costs_nothing,
            an_endless_script_of_another_client_costs_nothing,
            a_server_that_loads_its_data_for_a_while_costs_nothing,
            full_memory_refuses_only_new_locks,
            a_restart_that_keeps_the_data_costs_nothing,
            a_server_that_stops_for_less_than_the_lease_costs_nothing,
            clients_paused_for_less_than_the_lease_lose_nothing,
            clients_paused_for_longer_than_the_lease_lose_it_once,
            connections_that_are_closed_cost_nothing,
        }
        clocks {
            a_clock_set_forward_loses_the_lock_and_the_holder_learns_it,
            a_clock_set_back_costs_a_holder_nothing,
            an_unrenewed_lease_ends_for_its_holder_although_the_servers_clock_is_set_back,
        }
        rights {
            a_user_without_scripts_or_the_keys_is_denied_at_once,
            rights_taken_away_for_a_while_end_waits_and_cost_no_lease,
            rights_taken_away_for_ever_lose_the_lock_at_its_deadline,
            a_right_that_is_missing_leaves_no_lock_behind,
            a_renewal_without_the_right_to_pttl_shortens_no_lease,
            holder_and_waiter_learn_that_their_key_was_replaced,
            a_companion_replaced_while_held_costs_no_lease,
        }
        min_hold {
            a_waiter_that_queues_at_a_kept_lock_has_it_next,
            a_release_within_min_hold_wakes_the_first_waiter,
            a_repeated_release_lengthens_no_min_hold,
        }
        refusals {
            a_name_that_another_kind_holds_is_the_wrong_type,
        }
    }
    excludes {
        exclusion {
            no_update_is_lost,
        }
    }
    in_order {
        exclusion {
            serves_processes_in_the_order_in_which_they_came,
        }
        crashes {
            a_waiter_that_stalls_keeps_its_place_beside_dead_ones,
        }
    }
    shares {
        exclusion {
            several_hold_it_at_once,
            waiters_that_can_share_are_granted_together,
            sharers_and_exclusive_owners_do_not_starve_each_other,
        }
        crashes {
            a_killed_sharer_costs_the_others_nothing,
        }
        loss {
            the_loss_of_one_sharer_costs_the_others_nothing,
        }
    }
    keeps_fences {
        min_hold {
            fences_do_not_run_ahead_of_the_clock_with_min_hold,
            a_lock_that_is_kept_gives_its_unused_fences_back,
        }
        refusals {
            a_fence_of_another_type_leaves_no_lock_behind,
        }
    }
    one_clock {
        clocks {
            fences_rise_over_a_clock_that_is_set,
        }
    }
    numbers {
        traces {
            fences_rise_from_guard_to_guard,
        }
    }
    repeats_the_last_number {
        traces {
            readers_have_the_last_writers_fence,
        }
    }
    spans_names {
        loss {
            one_deleted_key_loses_the_multi_lock_and_frees_its_other_names,
        }
        min_hold {
            one_foreign_key_does_not_end_the_min_hold_of_the_other_names,
        }
    }
    runs_closures {
        closures {
            with_returns_what_the_closure_returns,
            with_times_out_and_names_the_holder,
            with_returns_lost_if_the_lease_ended_meanwhile,
            run_returns_the_result_beside_the_loss,
        }
        min_hold {
            a_timeout_at_a_kept_lock_names_the_last_owner,
        }
    }
}

matrix! {
    mutex = Mutex on Single {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: yes,
        excludes: yes,
        in_order: yes,
        shares: no("there is one guard at a time"),
        keeps_fences: yes,
        one_clock: yes,
        numbers: yes,
        repeats_the_last_number: no("each guard has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    unfenced_mutex = Unfenced on Single {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: yes,
        excludes: yes,
        in_order: yes,
        shares: no("there is one guard at a time"),
        keeps_fences: no("it has no fences"),
        one_clock: no("it has no fences"),
        numbers: no("it has no fences"),
        repeats_the_last_number: no("it has no fences"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    reentrant = Reentrant on Single {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: yes,
        excludes: yes,
        in_order: yes,
        shares: no("only the thread that holds it may lock it again: see the tests of the kind"),
        keeps_fences: yes,
        one_clock: yes,
        numbers: yes,
        repeats_the_last_number: no("each hold has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    reader = Reader on Single {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: yes,
        excludes: no("readers share; it is a writer that they keep out, and that keeps them out"),
        in_order: no("the readers that wait go in together"),
        shares: yes,
        keeps_fences: yes,
        one_clock: no("a reader has the last writer's fence"),
        numbers: no("a reader has the last writer's fence"),
        repeats_the_last_number: yes,
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    writer = Writer on Single {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: yes,
        excludes: yes,
        in_order: yes,
        shares: no("there is one writer at a time"),
        keeps_fences: yes,
        one_clock: yes,
        numbers: yes,
        repeats_the_last_number: no("each writer has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    only_permit = OnlyPermit on Single {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: yes,
        excludes: yes,
        in_order: yes,
        shares: no("there is one permit"),
        keeps_fences: yes,
        one_clock: yes,
        numbers: yes,
        repeats_the_last_number: no("each permit has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    permit = Permit on Single {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: yes,
        excludes: yes,
        in_order: yes,
        shares: yes,
        keeps_fences: yes,
        one_clock: yes,
        numbers: yes,
        repeats_the_last_number: no("each permit has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    permits = Permits on Single {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: yes,
        excludes: yes,
        in_order: yes,
        shares: no("two of three leave too few for another two"),
        keeps_fences: yes,
        one_clock: yes,
        numbers: yes,
        repeats_the_last_number: no("each guard has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    multi = Multi on Single {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: yes,
        excludes: yes,
        in_order: yes,
        shares: no("there is one guard at a time"),
        keeps_fences: yes,
        one_clock: yes,
        numbers: yes,
        repeats_the_last_number: no("each guard has fences of its own"),
        spans_names: yes,
        runs_closures: yes,
    }
    quorum_mutex = Mutex on Quorum {
        locks: yes,
        counts_listeners: yes,
        hands_over: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        one_server: no("its faults are those of its nodes, see the tests of the quorum; it hands no lock over, and has no inspect"),
        excludes: yes,
        in_order: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        shares: no("there is one guard at a time"),
        keeps_fences: yes,
        one_clock: no("each node has its own: see the tests of the quorum"),
        numbers: yes,
        repeats_the_last_number: no("each guard has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    quorum_unfenced_mutex = Unfenced on Quorum {
        locks: yes,
        counts_listeners: yes,
        hands_over: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        one_server: no("its faults are those of its nodes, see the tests of the quorum; it hands no lock over, and has no inspect"),
        excludes: yes,
        in_order: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        shares: no("there is one guard at a time"),
        keeps_fences: no("it has no fences"),
        one_clock: no("it has no fences"),
        numbers: no("it has no fences"),
        repeats_the_last_number: no("it has no fences"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    quorum_reentrant = Reentrant on Quorum {
        locks: yes,
        counts_listeners: yes,
        hands_over: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        one_server: no("its faults are those of its nodes, see the tests of the quorum; it hands no lock over, and has no inspect"),
        excludes: yes,
        in_order: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        shares: no("only the thread that holds it may lock it again"),
        keeps_fences: yes,
        one_clock: no("each node has its own: see the tests of the quorum"),
        numbers: yes,
        repeats_the_last_number: no("each guard has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    quorum_reader = Reader on Quorum {
        locks: yes,
        counts_listeners: yes,
        hands_over: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        one_server: no("its faults are those of its nodes, see the tests of the quorum; it hands no lock over, and has no inspect"),
        excludes: no("readers share; it is a writer that they keep out, and that keeps them out"),
        in_order: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        shares: yes,
        keeps_fences: yes,
        one_clock: no("a reader has the last writer's fence"),
        numbers: no("a reader has the last writer's fence"),
        repeats_the_last_number: yes,
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    quorum_writer = Writer on Quorum {
        locks: yes,
        counts_listeners: yes,
        hands_over: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        one_server: no("its faults are those of its nodes, see the tests of the quorum; it hands no lock over, and has no inspect"),
        excludes: yes,
        in_order: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        shares: no("there is one writer at a time"),
        keeps_fences: yes,
        one_clock: no("each node has its own: see the tests of the quorum"),
        numbers: yes,
        repeats_the_last_number: no("each writer has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    quorum_multi = Multi on Quorum {
        locks: yes,
        counts_listeners: yes,
        hands_over: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        one_server: no("its faults are those of its nodes, see the tests of the quorum; it hands no lock over, and has no inspect"),
        excludes: yes,
        in_order: no("a quorum hands no lock over: its waiters are woken, and ask again"),
        shares: no("there is one guard at a time"),
        keeps_fences: yes,
        one_clock: no("each node has its own: see the tests of the quorum"),
        numbers: yes,
        repeats_the_last_number: no("each guard has fences of its own"),
        spans_names: yes,
        runs_closures: yes,
    }
    sentinel_mutex = Mutex on Sentinel {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: no("the faults of its server are those of a single one; see also the tests of Sentinel"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one guard at a time"),
        keeps_fences: yes,
        one_clock: no("the clock of its server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each guard has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    sentinel_unfenced_mutex = Unfenced on Sentinel {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: no("the faults of its server are those of a single one; see also the tests of Sentinel"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one guard at a time"),
        keeps_fences: no("it has no fences"),
        one_clock: no("it has no fences"),
        numbers: no("it has no fences"),
        repeats_the_last_number: no("it has no fences"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    sentinel_reentrant = Reentrant on Sentinel {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: no("the faults of its server are those of a single one; see also the tests of Sentinel"),
        excludes: yes,
        in_order: yes,
        shares: no("only the thread that holds it may lock it again: see the tests of the kind"),
        keeps_fences: yes,
        one_clock: no("the clock of its server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each hold has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    sentinel_reader = Reader on Sentinel {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: no("the faults of its server are those of a single one; see also the tests of Sentinel"),
        excludes: no("readers share; it is a writer that they keep out, and that keeps them out"),
        in_order: no("the readers that wait go in together"),
        shares: yes,
        keeps_fences: yes,
        one_clock: no("a reader has the last writer's fence"),
        numbers: no("a reader has the last writer's fence"),
        repeats_the_last_number: yes,
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    sentinel_writer = Writer on Sentinel {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: no("the faults of its server are those of a single one; see also the tests of Sentinel"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one writer at a time"),
        keeps_fences: yes,
        one_clock: no("the clock of its server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each writer has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    sentinel_only_permit = OnlyPermit on Sentinel {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: no("the faults of its server are those of a single one; see also the tests of Sentinel"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one permit"),
        keeps_fences: yes,
        one_clock: no("the clock of its server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each permit has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    sentinel_permit = Permit on Sentinel {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: no("the faults of its server are those of a single one; see also the tests of Sentinel"),
        excludes: yes,
        in_order: yes,
        shares: yes,
        keeps_fences: yes,
        one_clock: no("the clock of its server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each permit has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    sentinel_permits = Permits on Sentinel {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: no("the faults of its server are those of a single one; see also the tests of Sentinel"),
        excludes: yes,
        in_order: yes,
        shares: no("two of three leave too few for another two"),
        keeps_fences: yes,
        one_clock: no("the clock of its server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each guard has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    sentinel_multi = Multi on Sentinel {
        locks: yes,
        counts_listeners: yes,
        hands_over: yes,
        one_server: no("the faults of its server are those of a single one; see also the tests of Sentinel"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one guard at a time"),
        keeps_fences: yes,
        one_clock: no("the clock of its server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each guard has fences of its own"),
        spans_names: yes,
        runs_closures: yes,
    }
    cluster_mutex = Mutex on Cluster {
        locks: yes,
        counts_listeners: no("a node counts no listeners of other nodes: dead waiters are skipped after a pickup window, see the tests of Cluster"),
        hands_over: yes,
        one_server: no("the faults of a server are those of a single one; see also the tests of Cluster"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one guard at a time"),
        keeps_fences: yes,
        one_clock: no("the clock of a server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each guard has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    cluster_unfenced_mutex = Unfenced on Cluster {
        locks: yes,
        counts_listeners: no("a node counts no listeners of other nodes: dead waiters are skipped after a pickup window, see the tests of Cluster"),
        hands_over: yes,
        one_server: no("the faults of a server are those of a single one; see also the tests of Cluster"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one guard at a time"),
        keeps_fences: no("it has no fences"),
        one_clock: no("it has no fences"),
        numbers: no("it has no fences"),
        repeats_the_last_number: no("it has no fences"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    cluster_reentrant = Reentrant on Cluster {
        locks: yes,
        counts_listeners: no("a node counts no listeners of other nodes: dead waiters are skipped after a pickup window, see the tests of Cluster"),
        hands_over: yes,
        one_server: no("the faults of a server are those of a single one; see also the tests of Cluster"),
        excludes: yes,
        in_order: yes,
        shares: no("only the thread that holds it may lock it again: see the tests of the kind"),
        keeps_fences: yes,
        one_clock: no("the clock of a server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each hold has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    cluster_reader = Reader on Cluster {
        locks: yes,
        counts_listeners: no("a node counts no listeners of other nodes: dead waiters are skipped after a pickup window, see the tests of Cluster"),
        hands_over: yes,
        one_server: no("the faults of a server are those of a single one; see also the tests of Cluster"),
        excludes: no("readers share; it is a writer that they keep out, and that keeps them out"),
        in_order: no("the readers that wait go in together"),
        shares: yes,
        keeps_fences: yes,
        one_clock: no("a reader has the last writer's fence"),
        numbers: no("a reader has the last writer's fence"),
        repeats_the_last_number: yes,
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    cluster_writer = Writer on Cluster {
        locks: yes,
        counts_listeners: no("a node counts no listeners of other nodes: dead waiters are skipped after a pickup window, see the tests of Cluster"),
        hands_over: yes,
        one_server: no("the faults of a server are those of a single one; see also the tests of Cluster"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one writer at a time"),
        keeps_fences: yes,
        one_clock: no("the clock of a server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each writer has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    cluster_only_permit = OnlyPermit on Cluster {
        locks: yes,
        counts_listeners: no("a node counts no listeners of other nodes: dead waiters are skipped after a pickup window, see the tests of Cluster"),
        hands_over: yes,
        one_server: no("the faults of a server are those of a single one; see also the tests of Cluster"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one permit"),
        keeps_fences: yes,
        one_clock: no("the clock of a server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each permit has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    cluster_permit = Permit on Cluster {
        locks: yes,
        counts_listeners: no("a node counts no listeners of other nodes: dead waiters are skipped after a pickup window, see the tests of Cluster"),
        hands_over: yes,
        one_server: no("the faults of a server are those of a single one; see also the tests of Cluster"),
        excludes: yes,
        in_order: yes,
        shares: yes,
        keeps_fences: yes,
        one_clock: no("the clock of a server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each permit has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    cluster_permits = Permits on Cluster {
        locks: yes,
        counts_listeners: no("a node counts no listeners of other nodes: dead waiters are skipped after a pickup window, see the tests of Cluster"),
        hands_over: yes,
        one_server: no("the faults of a server are those of a single one; see also the tests of Cluster"),
        excludes: yes,
        in_order: yes,
        shares: no("two of three leave too few for another two"),
        keeps_fences: yes,
        one_clock: no("the clock of a server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each guard has a fence of its own"),
        spans_names: no("it has one name"),
        runs_closures: yes,
    }
    cluster_multi = Multi on Cluster {
        locks: yes,
        counts_listeners: no("a node counts no listeners of other nodes: dead waiters are skipped after a pickup window, see the tests of Cluster"),
        hands_over: yes,
        one_server: no("the faults of a server are those of a single one; see also the tests of Cluster"),
        excludes: yes,
        in_order: yes,
        shares: no("there is one guard at a time"),
        keeps_fences: yes,
        one_clock: no("the clock of a server is that of a single one"),
        numbers: yes,
        repeats_the_last_number: no("each guard has fences of its own"),
        spans_names: yes,
        runs_closures: yes,
    }
}

/// The test binary has exactly the tests of the matrix, and each missing capability has a reason.
#[test]
fn each_kind_is_tested_or_says_why_not() {
    let listing = Command::new(env::current_exe().expect("this binary"))
        .args(["contract::", "--list", "--format=terse"])
        .output()
        .expect("this binary runs");
    let listing = String::from_utf8(listing.stdout).expect("names of tests");
    let mut run: HashSet<_> = listing
        .lines()
        .filter_map(|line| line.strip_prefix("contract::")?.strip_suffix(": test"))
        .collect();
    for row in MATRIX {
        let asked: Vec<_> = row
            .answers
            .iter()
            .map(|(capability, _)| capability)
            .collect();
        let all: Vec<_> = BEHAVIOURS
            .iter()
            .map(|(capability, _)| capability)
            .collect();
        assert_eq!(asked, all, "{}", row.kind);
        for ((capability, why_not), (_, behaviours)) in row.answers.iter().zip(BEHAVIOURS) {
            if let Some(reason) = why_not {
                assert!(reason.len() > 10, "{} {capability}: {reason:?}", row.kind);
            }
            for behaviour in *behaviours {
                let test = format!("{}::{behaviour}", row.kind);
                assert_eq!(run.remove(&*test), why_not.is_none(), "{test}");
            }
        }
    }
    assert_eq!(run, HashSet::from(["each_kind_is_tested_or_says_why_not"]));
    for (behaviour, _) in NOT_BEFORE_REDIS_7.iter().chain(&NOT_IN_MEMORY) {
        let is_there = |(_, all): &(_, &[&str])| all.contains(behaviour);
        assert!(BEHAVIOURS.iter().any(is_there), "no test {behaviour}");
    }
}
