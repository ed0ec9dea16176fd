//! Runs each model.

use leasehold_interleavings as models;

#[test]
fn no_thread_reads_held_after_it_was_told_of_the_loss() {
    models::no_thread_reads_held_after_it_was_told_of_the_loss();
}

#[test]
fn a_lease_ends_in_one_way() {
    models::a_lease_ends_in_one_way();
}

#[test]
fn a_cancel_is_never_slept_through() {
    models::a_cancel_is_never_slept_through();
}

#[test]
fn close_never_sleeps_past_the_last_busy_thread() {
    models::close_never_sleeps_past_the_last_busy_thread();
}
